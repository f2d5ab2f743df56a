"""Word ordering: shuffled sources, unknown words restored by position, and its score."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from argbeam.data.batches import Example
from argbeam.data.vocabulary import UNK
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.tasks.contract import Item
from argbeam.tasks.word_ordering import WordOrdering
from refusals import refusal
from small_runs import small_recipe


def task_of(folder: Path, text: str, *overrides: str, dev: str = "a b\n") -> WordOrdering:
    """A task of training and dev sentences written out here."""
    (folder / "train.txt").write_text(text, encoding="utf-8")
    (folder / "dev.txt").write_text(dev, encoding="utf-8")
    data: dict[str, Any] = {"kind": "text", "root": str(folder), "train": ["train.txt"], "dev": ["dev.txt"]}
    return WordOrdering.fit(small_recipe(*overrides, data=data))


def test_the_i_th_unknown_word_put_out_is_the_i_th_of_the_shuffled_source(tmp_path: Path) -> None:
    """x and y are unknown: of UNK a UNK, the first UNK is the source's first unknown word, y, not the reference's."""
    task = task_of(tmp_path, "a a x y\n", "text.min_count=2")
    assert task.source.words[4:] == ("a",)
    item = Item(source=("y", "a", "x"), surface=("y", "a", "x"), target=("x", "a", "y"), reference="x a y")
    example = task.example(item, 0)
    assert example == Example((UNK, 4, UNK), (UNK, 4, UNK), 0)
    assert task.text(item, [UNK, 4, UNK]) == "y a x"
    assert task.text(item, [UNK, UNK, 4]) == "y x a"
    assert task.score([item], [[UNK, 4, UNK]]).parts["exact"] == 0


def test_more_unknown_words_than_the_source_has_stay_unknown(tmp_path: Path) -> None:
    """Only a search without the constraint can do this."""
    task = task_of(tmp_path, "a b\n")
    a, b = task.source.encode(["a", "b"])
    assert task.text(task.item("a b"), [b, a, b]) == "b a <unk>"


def test_digits_are_folded_and_restored(tmp_path: Path) -> None:
    """1984 and 2024 are one word to the model; each is put out once, in the order of the source."""
    task = task_of(tmp_path, "in 1984 and 2024\n", "text.fold_digits=true")
    assert "####" in task.source and "1984" not in task.source
    item = task.item("2024 in 1999 x7")
    assert item.source == ("####", "in", "####", "x#")
    year, word = task.source.encode(["####", "in"])
    assert task.text(item, [word, year, year, UNK]) == "in 2024 1999 x7"


def test_lower_case_is_for_the_model_only(tmp_path: Path) -> None:
    task = task_of(tmp_path, "The cat\n", "text.lowercase=true")
    item = task.item("Cat THE")
    assert task.text(item, task.source.encode(["the", "cat"])) == "THE Cat"


def test_sentences_left_out_of_training_are_counted_and_dev_keeps_all(tmp_path: Path) -> None:
    text = "a\na b\na b c\na b c d\na b c d e\n"
    task = task_of(tmp_path, text, "text.min_length=2", "text.max_length=3", dev=text)
    train, dev = task.read("train"), task.read("dev")
    assert [item.reference for item in train.items] == ["a b", "a b c"]
    assert train.left_out == {"too short": 1, "too long": 2}
    assert (len(dev.items), dev.left_out) == (5, {})
    assert set(task.source.words[4:]) == {"a", "b", "c"}  # what is left out teaches no words


def test_a_source_is_shuffled_by_seed_split_and_number_alone(tmp_path: Path) -> None:
    line = "a b c d e f g h\n"
    one = task_of(tmp_path, line * 3, dev=line * 3)
    train, dev = ([item.source for item in one.read(split).items] for split in ("train", "dev"))
    assert [Counter(source) for source in train] == [Counter(line.split())] * 3
    assert len({*train, *dev}) == 6  # six orders of forty thousand
    longer = task_of(tmp_path, line * 3 + "a b\n", dev=line * 5)
    assert [item.source for item in longer.read("train").items][:3] == train
    assert [item.source for item in longer.read("dev").items][:3] == dev
    other = task_of(tmp_path, line * 3, "seed=2")
    assert not set(train) & {item.source for item in other.read("train").items}


def test_shuffled_anew_every_epoch_has_another_order_of_the_same_words_and_once_has_not(tmp_path: Path) -> None:
    task = task_of(tmp_path, "a b c d e f g h\n", "task.shuffle=epoch")
    (item,) = task.read("train").items
    example = task.example(item, 7)
    views = [task.training_view(example, epoch) for epoch in range(4)]
    assert len({view.source for view in views}) == 4
    for epoch, view in enumerate(views):
        assert Counter(view.source) == Counter(example.source)
        assert (view.target, view.sentence) == (example.target, 7)
        assert task.training_view(example, epoch) == view
    assert task.training_view(task.example(item, 8), 0).source != views[0].source
    once = task_of(tmp_path, "a b c d e f g h\n")
    assert once.training_view(example, 3) is example


def test_perfect_outputs_score_100_and_reversed_ones_less(tmp_path: Path) -> None:
    """One of four is right: exact 25; every unknown word is restored, so that the others may only lose order."""
    lines = "a b c d e\ne d c b a\na c e b d\nx y a b c\n"
    task = task_of(tmp_path, "a b c d e\n" * 2, "text.min_count=2", dev=lines)
    items = task.read("dev").items[:3]
    gold = [task.source.encode(item.target) for item in items]
    perfect = task.score(items, gold)
    assert perfect.value == pytest.approx(100.0)
    assert perfect.parts == {"bleu": perfect.value, "exact": 100.0}
    assert "tok:none" in perfect.signature
    worse = task.score(items, [gold[0], gold[1][::-1], gold[2][::-1]])
    assert worse.parts["exact"] == pytest.approx(100 / 3)
    assert 0 < worse.value < 100


def test_outputs_are_as_long_as_their_source_and_have_no_end_symbol(tmp_path: Path) -> None:
    task = task_of(tmp_path, "a b c\n")
    (item,) = task.read("train").items
    example = task.example(item, 0)
    assert not task.open_length
    assert task.limit(example) == len(example.source) == len(example.target) == 3
    assert task.constraint == Permutation()
    assert task.unconstrained == Unconstrained(len(task.source), end_symbol=False)


def test_a_split_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    message = "the recipe names no test files; data.test takes a list of paths; `--split dev` needs none"
    assert refusal(task_of(tmp_path, "a b\n").read, "test") == message
    data = {"kind": "generated", "types": 200, "seed": 5, "train": 8, "dev": 4, "test": 0}
    message = "data.test = 0: the generated corpus has no test sentences; ask for at least 1"
    assert refusal(WordOrdering.fit(small_recipe(data=data)).read, "test") == message
