"""Recommendation: leave-one-out, items that share codes, metrics from the beam, runs, and errors with their line."""

from pathlib import Path
from typing import Any

import pytest

from argbeam.errors import ConfigError
from argbeam.runs.examples import check_unchanged, data_digests
from argbeam.runs.load import load
from argbeam.runs.score import score_against
from argbeam.settings import Recipe
from argbeam.tasks.recommendation import Recommendation
from refusals import refusal
from small_runs import RATES, finish, small_recipe

ITEMS = "p\t<a1> <b1>\nq\t<a1> <b2>\nr\t<a2> <b1>\ntwin\t<a1> <b2>\n"
SEQUENCES = "p q r twin p\nr q\nq p r\n"
STAGES = {
    "ce": {"epochs": 1, "loss": {"kind": "cross_entropy", "valid_only": True}, "optimizer": RATES, "keep_beam": 3},
    "bso": {"epochs": 1, "loss": {"kind": "bso", "constrained": True}, "optimizer": RATES, "keep_beam": 3},
}


def recipe_of(folder: Path, *overrides: str, items: str = ITEMS, sequences: str = SEQUENCES) -> Recipe:
    (folder / "items.tsv").write_text(items)
    (folder / "users.txt").write_text(sequences)
    data: dict[str, Any] = {"kind": "interactions", "root": str(folder)}
    data |= {"sequences": ["users.txt"], "items": ["items.tsv"]}
    return small_recipe(*overrides, task="recommendation", data=data, stages=STAGES)


def test_the_last_item_is_tests_the_one_before_it_devs_and_the_rest_is_training(tmp_path: Path) -> None:
    """p q r twin p: training has q after p and r after p q, dev has twin, test has p. r q has nothing for training."""
    task = Recommendation.fit(recipe_of(tmp_path))
    train, dev, test = (task.read(split) for split in ("train", "dev", "test"))
    assert [(item.surface, item.target) for item in train.items] == [
        (("p",), ("<a1>", "<b2>")),
        (("p", "q"), ("<a2>", "<b1>")),
    ]
    assert train.left_out == {"sequences too short": 2}
    assert [(item.surface, item.reference) for item in dev.items] == [(("p", "q", "r"), "q"), (("q",), "p")]
    assert [item.surface for item in test.items] == [("p", "q", "r", "twin"), ("r",), ("q", "p")]
    assert train.items[1].source == ("<a1>", "<b1>", "<a1>", "<b2>")


def test_no_metric_asks_which_histories_training_had(tmp_path: Path) -> None:
    message = refusal(recipe_of, tmp_path, 'task.metrics=["hit10", "unseen"]', error=ConfigError)
    assert message.endswith('"unseen" is for text2text; "exact", or top, hit or ndcg with a rank are accepted here')


def test_a_history_has_the_latest_items_only(tmp_path: Path) -> None:
    task = Recommendation.fit(recipe_of(tmp_path, "task.history=2"))
    assert [item.surface for item in task.read("test").items] == [("r", "twin"), ("r",), ("q", "p")]
    assert task.item("p q r").surface == ("q", "r")


def test_items_with_the_same_codes_count_as_one(tmp_path: Path) -> None:
    """twin has the codes of q, which comes first: either is found by these codes."""
    task = Recommendation.fit(recipe_of(tmp_path))
    encode = task.target.encode
    items = [task.read("dev").items[0]]  # twin, as q
    lists = [[encode(("<a1>", "<b1>")), encode(("<a1>", "<b2>")), encode(("<a2>", "<b1>"))]]
    assert [task.text(items[0], output) for output in lists[0]] == ["p", "q", "r"]
    score = task.score_lists(items, lists)
    assert score.parts == pytest.approx({"ndcg10": 100 / 1.584962500721156, "hit10": 100.0})
    assert score.value == score.parts["ndcg10"]
    assert score.signature == "ndcg10+hit10|items:3|version:argbeam-outputs-1"


def test_a_run_decodes_items_scores_the_beam_and_is_tested_against_another(tmp_path: Path) -> None:
    finish(recipe_of(tmp_path, "runtime.store=true"), tmp_path / "one")
    finish(recipe_of(tmp_path, "seed=2"), tmp_path / "two")
    run = load(tmp_path / "one", device="cpu")
    found = [hypothesis for _, one in run.search(["p q"], beam=9, n_best=9) for hypothesis in one.hypotheses]
    outputs = [run.task.text(run.task.item("p"), hypothesis.tokens) for hypothesis in found]
    assert sorted(outputs) == ["p", "q", "r"]  # every item once, and nothing else
    (record,) = score_against(run, tmp_path / "two", "test", [3])
    assert record["scores"]["hit10"] == 100.0  # three items, a beam of three
    assert record["against"]["p_values"]["hit10"] == 1.0 and "ndcg10" in record["against"]["p_values"]


def test_a_run_resumes_with_its_own_items_and_sequences_only(tmp_path: Path) -> None:
    """Every split is made of both files: both belong to the data of training."""
    known = data_digests(recipe_of(tmp_path))
    assert list(known) == ["data.sequences users.txt", "data.items items.tsv"]
    recipe = recipe_of(tmp_path, items=ITEMS.replace("<b2>", "<b3>"))
    message = refusal(check_unchanged, recipe, tmp_path / "run", known=known, found=data_digests(recipe))
    assert message.startswith(f"{tmp_path}/items.tsv: not the file that {tmp_path}/run has trained with as data.items")


def test_a_task_comes_back_from_its_assets(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    task = Recommendation.fit(recipe)
    again = Recommendation.load(recipe, task.assets)
    assert (again.items, again.source, again.read("dev")) == (task.items, task.source, task.read("dev"))


def test_generated_users_follow_a_rule_that_can_be_learnt() -> None:
    """Most items are followed by one other most of the time."""
    data = {"kind": "generated", "types": 200, "train": 300, "dev": 7, "test": 5}
    task = Recommendation.fit(small_recipe(task="recommendation", data=data, stages=STAGES))
    assert (len(task.read("dev").items), len(task.read("test").items)) == (7, 5)
    after: dict[str, list[str]] = {}
    for item in task.read("train").items:
        after.setdefault(item.surface[-1], []).append(item.reference)
    common = [max(map(names.count, names)) / len(names) for names in after.values() if len(names) > 5]
    assert sum(share > 0.5 for share in common) > 0.8 * len(common)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"items": "p\t<a>\nq <b>\n"}, "items.tsv:2: no item and codes in 1 column; `name TAB code code` is expected"),
        ({"items": "p\t<a>\np\t<b>\n"}, "items.tsv:2: item 'p' for the second time; each item has one line"),
        ({"items": "p\t<a>\nq\t<a> <b>\n"}, "items.tsv:2: 2 codes; item 'p' has 1, and so must all"),
        (
            {"items": "p\t<a>\nq\t</s>\n"},
            "items.tsv:2: the code '</s>' is that of a special token; another spelling is expected",
        ),
        ({"items": "p q\t<a>\n"}, "items.tsv:1: a space in the name of item 'p q'; sequences separate items by spaces"),
        ({"sequences": "p q\np z\n"}, "users.txt:2: item 'z' has no codes; data.items lists 4 items"),
    ],
)
def test_an_error_in_a_file_has_its_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    recipe = recipe_of(tmp_path, **files)
    assert refusal(lambda: Recommendation.fit(recipe).read("test")) == f"{tmp_path}/{message}"


def test_an_item_to_decode_must_be_known(tmp_path: Path) -> None:
    task = Recommendation.fit(recipe_of(tmp_path))
    assert refusal(lambda: task.item("p", "z")) == "item 'z' has no codes; one of the 4 items is expected"
    assert refusal(lambda: task.item("p z")) == ("item 'z' has no codes; one of the 4 items is expected")
