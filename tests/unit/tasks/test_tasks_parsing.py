"""Parsing: trees as sequences and back, what is left out of training, and attachment scores by hand."""

from pathlib import Path
from typing import Any

import pytest

from argbeam.data.vocabulary import SPECIALS, UNK
from argbeam.decoding.batch_decoder import item_of
from argbeam.search.successors import ShiftReduce, Unconstrained
from argbeam.settings import Recipe
from argbeam.tasks.parsing import Parsing
from argbeam.tasks.transitions import is_action
from generated_files import conll_text
from refusals import refusal
from small_runs import small_recipe

# Word, tag, head, label.
Rows = list[tuple[str, str, int, str]]
BIRDS: Rows = [("small", "ADJ", 2, "amod"), ("birds", "NOUN", 3, "nsubj"), ("sing", "VERB", 0, "root")]
SING: Rows = [("sing", "VERB", 0, "root"), ("here", "ADV", 1, "advmod"), (".", "PUNCT", 1, "punct")]
ALONE: Rows = [("birds", "NOUN", 0, "root")]
# The arcs 1-3 and 2-4 cross.
CROSSED: Rows = [("a", "X", 3, "dep"), ("b", "X", 4, "odd"), ("c", "X", 0, "root"), ("d", "X", 3, "dep")]


def task_of(folder: Path, *trees: Rows, settings: tuple[str, ...] = (), dev: Rows | None = None) -> Parsing:
    """A task of training and dev trees in CoNLL-U."""
    return Parsing.fit(recipe_of(folder, conll_text(*trees), *settings, dev=conll_text(dev) if dev else ""))


def recipe_of(folder: Path, train: str, *overrides: str, dev: str = "", kind: str = "conllu") -> Recipe:
    (folder / f"train.{kind}").write_text(train, encoding="utf-8")
    (folder / f"dev.{kind}").write_text(dev or train, encoding="utf-8")
    data: dict[str, Any] = {"kind": kind, "root": str(folder), "train": [f"train.{kind}"], "dev": [f"dev.{kind}"]}
    return small_recipe(*overrides, task="parsing", data=data)


def test_a_tree_is_its_words_and_actions(tmp_path: Path) -> None:
    """The example of the transitions' docstring, as numbers and back."""
    task = task_of(tmp_path, BIRDS, SING)
    birds, sing = task.read("train").items
    assert birds.target == ("small", "birds", "@L_amod", "sing", "@L_nsubj")
    assert sing.target == ("sing", "here", "@R_advmod", ".", "@R_punct")
    example = task.example(birds, 3)
    assert (len(example.source), len(example.target), example.sentence) == (3, 5, 3)
    assert task.limit(example) == 5
    assert task.text(birds, example.target) == "small/2/amod birds/3/nsubj sing/0/root"
    assert task.training_view(example, 9) is example
    assert not task.open_length


def test_actions_are_last_in_the_vocabulary(tmp_path: Path) -> None:
    task = task_of(tmp_path, BIRDS, SING)
    kinds = [is_action(word) for word in task.source.words]
    assert kinds == sorted(kinds)
    labels = ["advmod", "amod", "nsubj", "punct"]  # the root's arc is no action
    assert list(task.source.words[-8:]) == [f"@{side}_{label}" for side in "LR" for label in labels]
    assert task.constraint == ShiftReduce(len(task.source), 8)
    assert task.unconstrained == Unconstrained(len(task.source), end_symbol=False)
    assert task.source is task.target


def test_unknown_words_are_shifted_and_written_as_they_were(tmp_path: Path) -> None:
    """Only `sing` occurs twice; every word shifts the next word of the source, known or not."""
    task = task_of(tmp_path, BIRDS, SING, settings=("text.min_count=2",))
    birds = task.read("train").items[0]
    numbers = task.source.encode(birds.target)
    assert numbers == [UNK, UNK, *(task.source.index[name] for name in ("@L_amod", "sing", "@L_nsubj"))]
    assert task.text(birds, numbers) == "small/2/amod birds/3/nsubj sing/0/root"


def test_digits_are_folded_for_the_model_only(tmp_path: Path) -> None:
    rows = [("1984", "NUM", 2, "nummod"), ("birds", "NOUN", 0, "root")]
    task = task_of(tmp_path, rows, settings=("text.fold_digits=true",))
    assert "####" in task.source
    item = task.item("2024 birds")
    assert item.source == ("####", "birds")
    target = task.source.encode(("####", "birds", "@L_nummod"))
    assert task.text(item, target) == "2024/2/nummod birds/0/root"


def test_a_line_of_conll_u_is_no_sentence(tmp_path: Path) -> None:
    """It would be parsed, columns and all."""
    assert refusal(item_of, task_of(tmp_path, BIRDS), "1\tbirds\tbird\tNOUN", most=9, where="stdin:3") == (
        "stdin:3: a tab; a line holds the words of one sentence; `argbeam decode --conll` reads CoNLL-U"
    )


def test_a_word_that_looks_like_an_action_is_a_word(tmp_path: Path) -> None:
    task = task_of(tmp_path, [("@L_amod", "SYM", 2, "amod"), ("birds", "NOUN", 0, "root")])
    (item,) = task.read("train").items
    assert item.target == ("@@L_amod", "birds", "@L_amod")
    assert task.text(item, task.source.encode(item.target)) == "@L_amod/2/amod birds/0/root"


def test_a_sentence_of_one_word_is_its_own_root(tmp_path: Path) -> None:
    task = task_of(tmp_path, BIRDS, dev=ALONE)
    (item,) = task.read("dev").items
    example = task.example(item, 0)
    assert (item.target, task.limit(example)) == (("birds",), 1)
    assert task.text(item, example.target) == "birds/0/root"
    assert task.score([item], [example.target]).parts == {"uas": 100.0, "las": 100.0}


def test_trees_that_are_not_projective_are_left_out_of_training_and_scored_in_dev(tmp_path: Path) -> None:
    """Against CROSSED, heads 3 3 0 3 have three of four right, and so have the labels."""
    task = task_of(tmp_path, BIRDS, CROSSED, SING)
    train = task.read("train")
    assert (len(train.items), train.left_out) == (2, {"non-projective": 1})
    assert "@L_odd" not in task.target  # what is left out teaches nothing
    task = task_of(tmp_path, [("a", "X", 2, "dep"), ("b", "X", 0, "root")], dev=CROSSED)
    dev = task.read("dev")
    (item,) = dev.items
    assert (item.target, dev.left_out) == ((), {})
    assert task.example(item, 0).target == ()
    output = task.source.encode(["a", "b", "<unk>", "@L_dep", "@L_dep", "<unk>", "@R_dep"])
    assert task.text(item, output) == "a/3/dep b/3/dep c/0/root d/3/dep"
    assert task.score([item], [output]).parts == {"uas": 75.0, "las": 75.0}


def test_lengths_are_counted_before_trees_are_looked_at(tmp_path: Path) -> None:
    task = task_of(tmp_path, BIRDS, CROSSED, ALONE, settings=("text.min_length=2", "text.max_length=3"))
    assert task.read("train").left_out == {"too long": 1, "too short": 1}


@pytest.mark.parametrize(
    ("punctuation", "kind", "tag", "uas", "las"),
    [
        ("upos", "conllu", "PUNCT", 100.0, 50.0),
        ("none", "conllu", "PUNCT", 200 / 3, 100 / 3),
        ("ptb", "conllx", ".", 100.0, 50.0),
        ("none", "conllx", ".", 200 / 3, 100 / 3),
    ],
)
def test_punctuation_counts_or_not_as_the_task_says(
    tmp_path: Path, punctuation: str, kind: str, tag: str, uas: float, las: float
) -> None:
    """`sing here .`: here has the right head and a wrong label, the full stop hangs from here and not from sing.
    Without it two heads of two and one label of two are right; with it two and one of three."""
    rows = [*SING[:2], (".", tag, 1, "punct")]
    text = conll_text(rows, BIRDS, second_tag=kind == "conllx")
    task = Parsing.fit(recipe_of(tmp_path, text, f"task.punctuation={punctuation}", kind=kind))
    item = task.read("train").items[0]
    output = task.source.encode(["sing", "here", ".", "@R_punct", "@R_punct"])
    score = task.score([item], [output])
    assert score.parts == pytest.approx({"uas": uas, "las": las})
    assert f"punct:{punctuation}" in score.signature
    (counts,) = task.counts([item], [output])
    assert (counts.uas, counts.las) == pytest.approx((uas, las))


def test_data_without_a_tree_to_train_on_has_no_item_and_no_action(tmp_path: Path) -> None:
    task = task_of(tmp_path, CROSSED)
    assert (task.read("train").items, task.source.words, task.root_label) == ([], SPECIALS, "root")


def test_the_roots_label_is_the_treebanks(tmp_path: Path) -> None:
    """Some treebanks write ROOT: gold actions give all labels right there too, also in a task made of its assets."""
    trees = conll_text(BIRDS, SING, second_tag=True).replace("\troot\t", "\tROOT\t")
    recipe = recipe_of(tmp_path, trees, kind="conllx")
    task = Parsing.fit(recipe)
    items = task.read("dev").items
    for one in (task, Parsing.load(recipe, task.assets)):
        outputs = [one.example(item, 0).target for item in items]
        assert one.score(items, outputs).parts == {"uas": 100.0, "las": 100.0}


def test_a_parse_that_met_a_dead_end_is_scored_as_a_flat_tree(tmp_path: Path) -> None:
    """One-word trees have no actions: nothing can be reduced. Gold is 2 3 0, so no head is right."""
    task = task_of(tmp_path, ALONE, dev=BIRDS)
    items = task.read("dev").items
    assert task.text(items[0], (UNK, UNK, UNK)) == "small/0/root birds/1/dep sing/1/dep"
    assert task.score(items, [(UNK, UNK, UNK)]).parts == {"uas": 0.0, "las": 0.0}
