"""Translation: end symbols, tokenizers, what is scored, and its length ratio."""

from pathlib import Path
from typing import Any

import pytest

from argbeam.data.vocabulary import EOS, UNK
from argbeam.search.successors import Unconstrained
from argbeam.settings import Recipe
from argbeam.tasks import TASKS
from argbeam.tasks.translation import Translation
from generated_files import write_files
from refusals import refusal
from small_runs import file_data, small_recipe

# Made up for this test.
PAIRS = [
    ("Der Hund schläft, glaube ich.", "The dog sleeps, I think."),
    ("Ein Mann liest (laut) ein Buch.", "A man reads a book (aloud)."),
    ("Zwei Kinder spielen im Garten.", "Two children play in the garden."),
    ("Die Kinder lesen ein Buch.", "The children read a book."),
]


def recipe_of(folder: Path, pairs: list[tuple[str, str]], *overrides: str) -> Recipe:
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text(text, encoding="utf-8")
    return small_recipe(*overrides, task="translation", data=file_data("tsv", folder))


def task_of(folder: Path, pairs: list[tuple[str, str]], *overrides: str) -> Translation:
    return Translation.fit(recipe_of(folder, pairs, *overrides))


def gold_of(task: Translation, items: list[Any]) -> list[tuple[int, ...]]:
    return [task.example(item, i).target for i, item in enumerate(items)]


def test_the_columns_of_a_table_may_be_swapped(tmp_path: Path) -> None:
    write_files(tmp_path, 5, train=8, dev=4, test=3, types=200)
    there = Translation.fit(small_recipe(task="translation", data=file_data("tsv", tmp_path)))
    data = file_data("tsv", tmp_path, source_column=1, target_column=0)
    back = Translation.fit(small_recipe(task="translation", data=data))
    assert (back.source, back.target) == (there.target, there.source)
    assert [i.source for i in back.read("dev").items] == [i.target for i in there.read("dev").items]


def test_gold_ends_in_the_end_symbol_and_an_input_has_no_gold(tmp_path: Path) -> None:
    task = task_of(tmp_path, [("a b", "x y z")])
    (item,) = task.read("train").items
    example = task.example(item, 5)
    assert example.target == (*task.target.encode(["x", "y", "z"]), EOS)
    assert example.sentence == 5
    assert task.training_view(example, 3) is example
    assert task.example(task.item("a b a"), 0).target == ()
    assert task.text(item, example.target) == "x y z"
    assert task.text(item, example.target[:-1]) == "x y z"  # an output that met the limit
    assert task.open_length
    assert task.constraint == task.unconstrained == Unconstrained(len(task.target), end_symbol=True)


@pytest.mark.parametrize(("factor", "extra", "limit"), [(2.0, 10, 16), (1.5, 1, 5), (0.0, 4, 4), (0.9, 2, 4)])
def test_the_limit_is_a_multiple_of_the_source_and_more(tmp_path: Path, factor: float, extra: int, limit: int) -> None:
    """For three source words; 1.5 * 3 = 4.5 and 0.9 * 3 = 2.7 are rounded down."""
    settings = (f"decode.length_factor={factor}", f"decode.length_extra={extra}")
    task = task_of(tmp_path, [("a b c", "x")], *settings)
    assert task.limit(task.example(task.item("a b c"), 0)) == limit


def test_unknown_words_stay_unknown_in_outputs_and_never_in_references(tmp_path: Path) -> None:
    pairs = [("a a", "x x"), ("a b", "x y")]
    task = task_of(tmp_path, pairs, "text.min_count=2")
    item = task.read("dev").items[1]
    assert item.reference == "x y"
    assert gold_of(task, [item]) == [(task.target.index["x"], UNK, EOS)]
    assert task.text(item, [task.target.index["x"], UNK, EOS]) == "x <unk>"
    assert task.score([item], gold_of(task, [item])).value < 100


def test_an_unknown_word_in_running_text_is_one_token_of_bleu(tmp_path: Path) -> None:
    """Four of five words are right: precisions 4/5, 3/4, 2/3 and 1/2, no brevity penalty, so BLEU is 0.2 ** (1/4).

    `<unk>` would be three tokens to `13a`: `<`, `unk` and `>`.
    """
    pairs = [("d", "the old dog barks loudly"), ("e", "the old dog barks softly")]
    task = task_of(tmp_path, pairs, "text.tokenizer=moses", "text.min_count=2")
    item = task.read("dev").items[0]
    output = gold_of(task, [item])
    assert output[0].count(UNK) == 1
    assert task.text(item, output[0]) == "the old dog barks \u2047"
    score = task.score([item], output)
    assert score.parts["length"] == 1.0
    assert score.value == pytest.approx(100 * 0.2**0.25)


def test_tokenised_text_is_scored_as_it_is(tmp_path: Path) -> None:
    """`dog.` and `dog .` are two different texts to `tok:none`."""
    task = task_of(tmp_path, [("d", "the big old dog ."), ("e", "the big old dog.")])
    items = task.read("dev").items
    perfect = task.score(items, gold_of(task, items))
    assert perfect.value == pytest.approx(100.0)
    assert perfect.parts == {"bleu": perfect.value, "length": 1.0}
    assert "tok:none" in perfect.signature
    assert task.score(items, gold_of(task, items)[::-1]).value < 100


@pytest.mark.parametrize("setting", ["text.tokenizer=moses", "text.subwords=60"])
def test_raw_text_is_scored_detokenised_against_the_line_as_it_was(tmp_path: Path, setting: str) -> None:
    """Tokens and pieces of words both join to the line that they were cut from."""
    task = task_of(tmp_path, PAIRS, setting)
    items = task.read("dev").items
    assert all(len(item.target) > len(target.split()) for item, (_, target) in zip(items, PAIRS, strict=True))
    assert items[0].reference == PAIRS[0][1]
    gold = gold_of(task, items)
    assert [task.text(item, output) for item, output in zip(items, gold, strict=True)] == [t for _, t in PAIRS]
    score = task.score(items, gold)
    assert score.value == pytest.approx(100.0)
    assert "tok:13a" in score.signature


def test_lower_case_outputs_are_compared_with_raw_references(tmp_path: Path) -> None:
    """The references of raw text keep their capitals, so that a model without them cannot be perfect."""
    task = task_of(tmp_path, PAIRS, "text.tokenizer=moses", "text.lowercase=true")
    items = task.read("dev").items
    assert items[0].source == ("der", "hund", "schläft", ",", "glaube", "ich", ".")
    assert items[0].target[0] == "the"
    assert task.score(items, gold_of(task, items)).value < 100


def test_half_the_words_have_a_length_ratio_of_a_half(tmp_path: Path) -> None:
    """Two references of four words, outputs of four and of none: 4 / 8."""
    task = task_of(tmp_path, [("a", "x y z w"), ("b", "w z y x")])
    items = task.read("dev").items
    gold = gold_of(task, items)
    assert task.score(items, [gold[0], (EOS,)]).parts["length"] == 0.5
    assert task.score(items, [gold[0], gold[1][:-1] * 2]).parts["length"] == 1.5


def test_pairs_left_out_of_training_are_counted_by_their_worse_side(tmp_path: Path) -> None:
    pairs = [("a", "x y"), ("a b", "x y"), ("a b c", "x y"), ("a b", "x y z w"), ("a", "x y z w")]
    task = task_of(tmp_path, pairs, "text.min_length=2", "text.max_length=3")
    train = task.read("train")
    assert [item.reference for item in train.items] == ["x y", "x y"]
    assert train.left_out == {"too short": 2, "too long": 1}
    assert set(task.source.words[4:]) == {"a", "b", "c"}  # what is left out teaches no words
    assert set(task.target.words[4:]) == {"x", "y"}
    assert len(task.read("dev").items) == 5


@pytest.mark.parametrize(
    "settings",
    [(), ("text.tokenizer=moses", "text.fold_digits=true"), ("text.subwords=60", "text.lowercase=true")],
    ids=["words", "moses", "pieces"],
)
def test_a_task_comes_back_from_its_assets(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Without its training data: the file is gone."""
    recipe = recipe_of(tmp_path, PAIRS, *settings)
    task = Translation.fit(recipe)
    (tmp_path / "train.tsv").unlink()
    again = TASKS["translation"].load(recipe, task.assets)
    assert (again.source, again.target) == (task.source, task.target)
    assert again.assets == task.assets
    items = task.read("dev").items
    assert again.read("dev").items == items
    for item, output in zip(items, gold_of(task, items), strict=True):
        assert again.text(item, output) == task.text(item, output)
    line = "Ein Hund, 2 Kinder."
    assert again.item(line) == task.item(line)


def test_a_side_that_is_not_named_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, 5, train=8, dev=4, test=3, types=200)
    data = file_data("parallel", tmp_path, test_source=[], test_target=[])
    task = Translation.fit(small_recipe(task="translation", data=data))
    message = "the recipe names no test_source files; data.test_source takes a list of paths; `--split dev` needs none"
    assert refusal(task.read, "test") == message
