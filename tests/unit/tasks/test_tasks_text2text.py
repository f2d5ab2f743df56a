"""Text to text: units of each side, metrics from the n-best list, sources that training had, and errors."""

from pathlib import Path

import pytest

from argbeam.data.tokenizers import Characters, Smiles
from argbeam.errors import ConfigError
from argbeam.runs.load import load
from argbeam.runs.score import score_against, show_scores
from argbeam.runs.train import train
from argbeam.settings import Recipe
from argbeam.tasks.translation import Translation
from argbeam.training.events import Notice
from refusals import refusal
from small_runs import PRETRAIN, file_data, finish, small_recipe

STAGES = {"only": {**PRETRAIN, "epochs": 1, "keep": "score", "keep_beam": 2}}
GENERATED = {"kind": "generated", "types": 200, "train": 6, "dev": 2, "test": 2}


def recipe_of(folder: Path, *overrides: str, pairs: str = "ab c\tx  yz\nab c\tx yz\nb\tz\n") -> Recipe:
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text(pairs)
    return small_recipe(*overrides, task="text2text", data=file_data("tsv", folder), stages=STAGES)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("words", "characters", (("ab", "c"), ("x", "\u2581", "y", "z"))),
        ("characters", "words", (("a", "b", "\u2581", "c"), ("x", "yz"))),
    ],
)
def test_each_side_has_its_units_and_texts_come_back(
    tmp_path: Path, source: str, target: str, expected: tuple[tuple[str, ...], ...]
) -> None:
    task = Translation.fit(recipe_of(tmp_path, f"task.source={source}", f"task.target={target}"))
    item = task.read("dev").items[0]
    assert (item.source, item.target) == expected
    assert item.reference == "x yz"
    output = task.example(item, 0).target
    assert task.text(item, output) == "x yz"
    assert task.score([item], [output]).parts == {"exact": 100.0}


def test_scores_read_the_list_and_know_the_sources_of_training(tmp_path: Path) -> None:
    """The first of dev's sources was seen in training, the second was not; its text is second on the list."""
    recipe = recipe_of(tmp_path, 'task.metrics=["exact", "top2", "unseen", "token_error_rate"]')
    (tmp_path / "dev.tsv").write_text("b\tz\nc c\tz\n")
    task = Translation.fit(recipe)
    again = Translation.load(recipe, task.assets)
    assert again.seen == task.seen == {"ab c", "b"}
    assert again.n_best == 2
    items = again.read("dev").items
    z, x = (task.target.encode([word]) for word in ("z", "x"))
    score = again.score_lists(items, [[z, x], [x, z]])
    assert score.parts == {"exact": 50.0, "top2": 100.0, "unseen": 0.0, "token_error_rate": 50.0}
    assert score.signature == "exact+top2+unseen+token_error_rate|target:words|version:argbeam-outputs-1"


def test_outputs_that_spell_one_text_are_one_in_the_list(tmp_path: Path) -> None:
    """`z` in one piece and in two, then `x`: the second best text is `x`. The whole beam is asked for."""
    overrides = ("task.target=pieces", "text.subwords=7", 'task.metrics=["exact", "top2"]')
    task = Translation.fit(recipe_of(tmp_path, *overrides, pairs="b\tx\na\tzz z\na\tz zz zzx\n"))
    assert task.n_best > 1000
    lists = [[task.target.encode(pieces) for pieces in (["\u2581z"], ["\u2581", "z"], ["\u2581", "x"])]]
    assert task.score_lists(task.read("dev").items[:1], lists).parts == {"exact": 0.0, "top2": 100.0}


def test_matches_do_not_depend_on_what_pieces_do_not_keep(tmp_path: Path) -> None:
    """Runs of spaces, those at the end, and capitals where the text is lowered: the right output is right."""
    metrics = 'task.metrics=["exact", "top2", "token_error_rate", "unseen"]'
    for lowercase, right in (("false", "x Y"), ("true", "x y")):
        overrides = ("task.target=pieces", "text.subwords=9", f"text.lowercase={lowercase}", metrics)
        recipe = recipe_of(tmp_path, *overrides, pairs="b\tx  Y \na\tx Yz\n")
        (tmp_path / "dev.tsv").write_text("c\tx  Y \n")
        task = Translation.fit(recipe)
        items = task.read("dev").items
        outputs = [task.example(items[0], 0).target]
        assert task.text(items[0], outputs[0]) == right
        score = task.score(items, outputs)
        assert score.parts == {"exact": 100.0, "top2": 100.0, "token_error_rate": 0.0, "unseen": 100.0}
        assert "|target:pieces|spaces:plain|" in score.signature


@pytest.mark.parametrize("unit", [("words",), ("characters",), ("pieces", "text.subwords=9")])
def test_folded_digits_are_folded_in_references_too(tmp_path: Path, unit: tuple[str, ...]) -> None:
    """An output has no digits: compared with `x 12` none could be right."""
    metrics = 'task.metrics=["exact", "token_error_rate"]'
    target, *others = unit
    overrides = (f"task.target={target}", *others, "text.fold_digits=true", metrics)
    task = Translation.fit(recipe_of(tmp_path, *overrides, pairs="b\tx ##\na\tx 12\n"))
    for item in task.read("dev").items:
        output = task.example(item, 0).target
        assert task.text(item, output) == "x ##"
        assert task.score([item], [output]).parts == {"exact": 100.0, "token_error_rate": 0.0}


def test_a_run_of_pieces_is_scored_and_tested_against_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = 'task.metrics=["exact", "top3", "chrf"]'
    pieces = ("task.source=pieces", "task.target=pieces", "text.subwords=60", metrics)
    for name in ("one", "two"):
        finish(small_recipe(*pieces, task="text2text", data=GENERATED, stages=STAGES), tmp_path / name)
    run = load(tmp_path / "one", device="cpu")
    (record,) = score_against(run, tmp_path / "two", "test", [3])
    assert set(record["scores"]) == set(record["against"]["p_values"]) == {"exact", "top3", "chrf"}
    assert set(record["against"]["p_values"].values()) == {1.0}  # the same run twice
    show_scores([record, record | {"test_beam": 2}])
    assert capsys.readouterr().err == "beam 2 is narrower than the rank of top3: too few outputs to count\n"


def test_training_says_which_beam_is_narrower_than_the_rank_of_a_metric(tmp_path: Path) -> None:
    stages = {name: {**STAGES["only"], "keep_beam": beam} for name, beam in (("first", 3), ("second", 2))}
    recipe = recipe_of(tmp_path, 'task.metrics=["exact", "top3", "hit9"]')
    recipe = small_recipe(
        'task.metrics=["exact", "top3", "hit9"]', task="text2text", data=recipe.data.model_dump(), stages=stages
    )
    said = [event.text for event in train(recipe, tmp_path / "run") if isinstance(event, Notice)]
    assert [text for text in said if "narrower" in text] == [
        "stages.first.keep_beam = 3 is narrower than the rank of hit9: too few outputs to count",
        "stages.second.keep_beam = 2 is narrower than the rank of top3, hit9: too few outputs to count",
    ]


def test_smiles_are_cut_into_atoms_bonds_and_brackets() -> None:
    assert Smiles().tokenize("C[C@H](Br)c1ccc2%12Cl") == [
        *("C", "[C@H]", "(", "Br", ")", "c", "1", "c", "c", "c", "2", "%12", "Cl")
    ]
    assert refusal(lambda: Smiles().tokenize("CCxC")) == "'x' at character 3 of 'CCxC' is not SMILES"
    assert Characters(lower=True).tokenize(" A  b") == ["a", "\u2581", "b"]


def test_an_error_in_a_text_has_its_line(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "task.target=smiles", pairs="a\tCC\nb\tCxC\n")
    assert refusal(lambda: Translation.fit(recipe)) == (
        f"{tmp_path}/train.tsv:2: 'x' at character 2 of 'CxC' is not SMILES"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task.source=pieces",), "text.subwords = 0: it is the size of"),
        (("text.subwords=50",), "text.subwords = 50: it is the size of"),
        (("task.target=letters",), "must be one of words, characters, pieces, smiles"),
        (('task.metrics=["top0"]',), "or top, hit or ndcg with a rank, as in top5"),
        (("task.metrics=[]",), "task.metrics is empty: at least one is needed"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        recipe_of(tmp_path, *overrides)
    assert message in str(error.value) and "\n" not in str(error.value)
