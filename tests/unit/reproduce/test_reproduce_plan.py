"""Plans by hand: what is shared, in which order, what is left to do, and which overrides go where."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from argbeam.errors import ConfigError
from argbeam.reproduce.corpora import Corpus, find_corpora
from argbeam.reproduce.experiments import EXPERIMENTS, Experiment, System
from argbeam.reproduce.folder import PlanRecord, read_plan, update_plan
from argbeam.reproduce.paper import PAPER
from argbeam.reproduce.plan import RunPlan, Scoring, make_plan, runs_left
from argbeam.reproduce.sums import FURTHER, GROUPS, chosen_experiments
from argbeam.settings.recipe_files import load_recipe, shipped_recipes

DEMO = {"word_ordering": Corpus("small", ("data.train=20", "data.dev=2", "data.test=2"), 20)}
SEQ2SEQ, BSO = System("seq2seq", "demo/seq2seq"), System("BSO", "demo/bso")
CONBSO, WIDE = System("ConBSO", "demo/conbso"), System("wide", "demo/conbso", "k9", ("stages.bso.loss.train_beam=9",))


def experiment(name: str, *systems: System, split: str = "test") -> Experiment:
    return Experiment(name, name, "word_ordering", split, systems)


def planned(*experiments: Experiment, seeds: int = 1, sets: tuple[str, ...] = ()) -> RunPlan:
    return make_plan(experiments, DEMO, seeds=range(1, seeds + 1), folder=Path("runs"), sets=sets)


def paper_plan(tables: Sequence[Experiment], seeds: int = 1) -> RunPlan:
    corpora = find_corpora("generated", Path("data")).corpora
    corpora |= dict.fromkeys(("regex", "anselm", "uspto", "beauty"), corpora["office"])  # a plan opens no file
    return make_plan(tables, corpora, seeds=range(1, seeds + 1), folder=Path("runs"))


def test_runs_that_start_from_the_same_model_share_it() -> None:
    """seq2seq has one stage and stands alone; BSO and ConBSO have the same first stage and seed."""
    plan = planned(experiment("a", SEQ2SEQ, BSO, CONBSO))
    seq2seq, pretrain, bso, conbso = plan.runs
    names = [f"demo-{name}.small.s1" for name in ("seq2seq", "bso", "conbso")]
    assert [run.name for run in (seq2seq, bso, conbso)] == names
    assert (seq2seq.start, pretrain.start, bso.start, conbso.start) == ("", "", pretrain.name, pretrain.name)
    assert list(pretrain.recipe.stages) == ["pretrain"] and pretrain.scorings == ()
    assert list(bso.recipe.stages) == list(conbso.recipe.stages) == ["bso"]
    assert bso.recipe.start == conbso.recipe.start == str(Path("runs") / pretrain.name)
    assert pretrain.recipe.stages["pretrain"] == load_recipe(shipped_recipes()["demo/bso"]).stages["pretrain"]


def test_a_first_stage_that_differs_is_not_shared() -> None:
    other = System("other", "demo/conbso", "long", ("stages.pretrain.epochs=9",))
    plan = planned(experiment("a", CONBSO, other))
    assert len({run.start for run in plan.runs if run.start}) == 2


def test_a_table_with_every_seed_has_its_runs_seed_by_seed() -> None:
    """Names do not depend on the tables asked for, so that a second command finds the runs of the first."""
    tables = experiment("a", SEQ2SEQ, BSO), experiment("b", SEQ2SEQ, WIDE)
    plan = planned(*tables, seeds=2)
    names = ["demo-seq2seq", "word_ordering-pretrain", "demo-bso", "demo-conbso-k9"]
    assert [run.name.split(".")[0] for run in plan.runs] == 2 * names
    assert [run.recipe.seed for run in plan.runs] == 4 * [1] + 4 * [2]
    rows = [tuple(f"{name}.small.s{seed}" for seed in (1, 2)) for name in ("demo-seq2seq", "demo-conbso-k9")]
    assert [row.runs for row in plan.tables[1].rows] == rows
    assert {run.name for run in planned(tables[1]).runs} <= {run.name for run in plan.runs}


def test_a_run_of_several_tables_is_trained_once_and_scored_for_each() -> None:
    plan = planned(experiment("a", SEQ2SEQ), experiment("b", SEQ2SEQ, split="dev"), experiment("c", SEQ2SEQ))
    (run,) = plan.runs
    assert run.scorings == (Scoring("test"), Scoring("dev"))


def test_test_is_scored_for_tables_of_test_only() -> None:
    """No run of the paper's dev tables alone ever opens the test split."""
    plan = paper_plan([one for one in EXPERIMENTS if one.split == "dev"])
    assert {scoring.split for run in plan.runs for scoring in run.scorings} == {"dev"}


def test_dependencies_come_before_dependants_in_the_plan_of_all_tables() -> None:
    plan = paper_plan([*EXPERIMENTS, *FURTHER], seeds=2)
    runs = {run.name: run for run in plan.runs}
    assert len(runs) == len(plan.runs)
    names = list(runs)
    assert all(names.index(run.start) < names.index(run.name) for run in plan.runs if run.start)
    for row in (row for table in plan.tables for row in table.rows):
        assert len(row.runs) == 2
        assert all(row.scoring in runs[name].scorings for name in row.runs)


TEST, DEV = Scoring("test"), Scoring("dev")


def test_only_what_is_not_done_is_left() -> None:
    """ConBSO lacks a scoring, BSO its training, seq2seq nothing."""
    plan = planned(experiment("a", SEQ2SEQ, BSO, CONBSO), experiment("b", CONBSO, split="dev"))
    seq2seq, pretrain, bso, conbso = (run.name for run in plan.runs)
    done = {seq2seq: {TEST}, conbso: {TEST}}
    assert runs_left(plan, trained={seq2seq, pretrain, conbso}, scored=done) == {bso: (TEST,), conbso: (DEV,)}
    everything = runs_left(plan, trained=(), scored={})
    assert list(everything.items()) == [(pretrain, ()), (bso, (TEST,)), (conbso, (TEST, DEV)), (seq2seq, (TEST,))]


def test_runs_asked_for_by_name_come_with_those_they_start_from() -> None:
    plan = planned(experiment("a", SEQ2SEQ, BSO, CONBSO), seeds=2)
    by_seed = [[run.name for run in plan.runs if run.recipe.seed == seed] for seed in (1, 2)]
    (_, pretrain, bso, _), (_, pretrain_2, _, conbso_2) = by_seed
    left = runs_left(plan, trained=(), scored={}, only=["*-bso.*.s1", "*conbso*2"])
    assert left == {pretrain: (), bso: (TEST,), pretrain_2: (), conbso_2: (TEST,)}
    assert runs_left(plan, trained=(), scored={bso: {TEST}}, only=["*-bso.*.s1"]) == {}


def test_what_is_scored_is_done_though_its_model_is_elsewhere() -> None:
    """BSO's scores came from another machine: ConBSO is left, with the pre-training it needs. With ConBSO's too, and
    seq2seq's, nothing is left: pre-training is there for others alone."""
    plan = planned(experiment("a", SEQ2SEQ, BSO, CONBSO))
    seq2seq, pretrain, bso, conbso = (run.name for run in plan.runs)
    left = runs_left(plan, trained=(), scored={seq2seq: {TEST}, bso: {TEST}})
    assert list(left.items()) == [(pretrain, ()), (conbso, (TEST,))]
    assert runs_left(plan, trained=(), scored={name: {TEST} for name in (seq2seq, bso, conbso)}) == {}


def test_a_run_that_is_made_again_is_scored_in_all_ways() -> None:
    """Seq2seq was scored on test elsewhere, and dev is wanted now, with the table of test or without."""
    wanted = experiment("b", SEQ2SEQ, split="dev")
    for tables, expected in (((experiment("a", SEQ2SEQ), wanted), (TEST, DEV)), ((wanted,), (DEV, TEST))):
        plan, scored = planned(*tables), {"demo-seq2seq.small.s1": {TEST}}
        assert runs_left(plan, trained=(), scored=scored) == dict.fromkeys(scored, expected)
        assert runs_left(plan, trained=scored, scored=scored) == dict.fromkeys(scored, (DEV,))


def test_in_each_seed_the_run_with_most_to_come_is_first() -> None:
    """20 sentences, 5 epochs of pre-training: 100. BSO: 14 epochs, a search counted three times: 840. With one epoch of
    BSO: 60. seq2seq: 19, 380."""
    short = System("short", "demo/bso", "short", ("stages.bso.epochs=1",))
    plan = planned(experiment("a", short, SEQ2SEQ, BSO), seeds=2)
    runs = {run.name: run for run in plan.runs}
    left = [runs[name] for name in runs_left(plan, trained=(), scored={})]
    expected = [(seed, work) for seed in (1, 2) for work in (100, 840, 380, 60)]
    assert [(run.recipe.seed, run.work) for run in left] == expected


def test_overrides_go_to_the_stages_that_there_are() -> None:
    """seq2seq has the stage `train`, BSO `pretrain` and `bso`; a star is for all, and the last one wins."""
    sets = ("stages.*.epochs=2", "stages.pretrain.epochs=1", "stages.bso.epochs=3", "model.hidden=7")
    plan = planned(experiment("a", SEQ2SEQ, BSO), sets=sets)
    epochs = {name: stage.epochs for run in plan.runs for name, stage in run.recipe.stages.items()}
    assert epochs == {"train": 2, "pretrain": 1, "bso": 3}
    assert {run.recipe.model.hidden for run in plan.runs} == {7}
    with pytest.raises(ConfigError) as error:
        planned(experiment("a", SEQ2SEQ), sets=("stages.bsso.epochs=3",))
    assert str(error.value) == "--set stages.bsso.epochs=3: no recipe of these tables has that stage"
    with pytest.raises(ConfigError, match=r"unknown key model\.hiden; did you mean model\.hidden\?"):
        planned(experiment("a", SEQ2SEQ), sets=("model.hiden=3",))


@pytest.mark.parametrize("override", ["seed=3", 'start="x"'])
def test_what_the_plan_sets_itself_cannot_be_overridden(override: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(experiment("a", SEQ2SEQ), sets=(override,))
    assert str(error.value) == (f"--set {override}: reproduce sets that itself; --seeds says how many seeds there are")


def recorded(out: Path, *plans: RunPlan) -> PlanRecord:
    """plan.json after commands with these plans."""
    out.mkdir()
    for plan in plans:
        update_plan(out, plan)
    return read_plan(out)


def test_a_second_command_with_fewer_seeds_keeps_the_others(tmp_path: Path) -> None:
    """And one with more adds them. Runs are listed in the order in which they were first planned."""
    one, two = (planned(experiment("a", SEQ2SEQ, BSO), seeds=seeds) for seeds in (1, 2))
    expected = recorded(tmp_path / "two", two)
    assert [len(row.runs) for row in expected.tables[0].rows] == [2, 2]
    assert recorded(tmp_path / "fewer", two, one) == recorded(tmp_path / "more", one, two) == expected


def test_a_second_command_keeps_the_tables_of_the_first(tmp_path: Path) -> None:
    first, second = planned(experiment("a", SEQ2SEQ), experiment("b", BSO)), planned(experiment("b", CONBSO))
    record = recorded(tmp_path / "out", first, second)
    assert [(table.name, table.rows[0].label) for table in record.tables] == [("a", "seq2seq"), ("b", "ConBSO")]
    assert len({run.name for run in record.runs}) == len(record.runs) == 4


def test_every_row_of_the_paper_is_a_row_of_ours() -> None:
    """Otherwise its numbers would never be shown beside anything."""
    rows = {one.name: {system.label for system in one.systems} for one in EXPERIMENTS}
    for name, table in PAPER.items():
        assert set(table.rows) <= rows[name]
    for one in (*EXPERIMENTS, *FURTHER):
        assert set(one.references) <= {system.label for system in one.systems} and one.references


def test_a_first_stage_that_is_a_system_of_its_own_is_trained_once() -> None:
    """Five epochs of seq2seq are the pre-training of BSO, whatever the stages are called; they are a row, too."""
    baseline = System("baseline", "demo/seq2seq", "short", ("stages.train.epochs=5",))
    first = planned(experiment("a", baseline, BSO, CONBSO))
    seq2seq, bso, conbso = first.runs
    assert bso.start == conbso.start == seq2seq.name
    assert bso.recipe.start == str(Path("runs") / seq2seq.name)
    assert seq2seq.scorings == (TEST,)
    assert runs_left(first, trained=(), scored={seq2seq.name: {TEST}, bso.name: {TEST}}).keys() == {
        seq2seq.name,
        conbso.name,
    }


def test_transformers_and_from_averaged_lstms_start_from_their_own_baselines() -> None:
    plan = paper_plan(FURTHER)
    runs = {run.name: run for run in plan.runs}
    for run in plan.runs:
        if run.name.startswith("transformer-") and "cross_entropy" not in run.name:
            assert "cross_entropy" in run.start and runs[run.start].scorings, run.name


def test_tables_are_chosen_by_name_or_group_and_without_names_they_are_the_papers() -> None:
    assert chosen_experiments([]) == list(EXPERIMENTS)
    assert chosen_experiments(["sums"]) == list(GROUPS["sums"])
    names = [one.name for one in chosen_experiments(["transformer_mrt", "costs", "sums_parsing"])]
    assert names == ["costs", "sums_parsing", *(one.name for one in GROUPS["transformer_mrt"])]
    assert {one.name for one in GROUPS["transformer"]} > {one.name for one in GROUPS["transformer_mrt"]}
    assert not GROUPS.keys() & {one.name for one in (*EXPERIMENTS, *FURTHER)}


def test_further_tables_are_scored_at_wide_beams_and_as_servers_search() -> None:
    (table,) = chosen_experiments(["transformer_translation"])
    (run,) = (run for run in paper_plan([table]).runs if "logprob" in run.name)
    own, served = run.scorings
    assert (own.beams, own.powers, own.stop) == ((1, 5, 10, 50), (), "")
    assert (served.beams, served.stop, bool(served.powers), str(served)) == (
        (1, 5, 10, 50),
        "best",
        True,
        "test by length stop best",
    )


def test_every_override_of_a_system_is_for_a_stage_that_one_of_its_table_has() -> None:
    """Overrides for stages that a recipe lacks are left out, so that a slip in a stage's name would be silent."""
    for table in (*EXPERIMENTS, *FURTHER):
        recipes = [load_recipe(shipped_recipes()[system.recipe]) for system in table.systems]
        known = {stage for recipe in recipes for stage in recipe.stages}
        keys = [override.split(".") for system in table.systems for override in system.sets]
        assert {key[1] for key in keys if key[0] == "stages"} <= known, table.name
