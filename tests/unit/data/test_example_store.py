"""Examples on disk are the examples in memory, and a store that is damaged or made of other things is built anew."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import Example, lengths_of
from argbeam.data.example_store import StoredExamples, write_store
from argbeam.errors import DataError
from argbeam.runs.examples import TrainingData, build_store, open_store, read_examples, store_key, stored_examples
from argbeam.settings import Recipe
from generated_files import write_files
from small_runs import (
    PRETRAIN,
    file_data,
    final_tensors,
    finish,
    same_tensors,
    short_text,
    small_recipe,
    stop_after,
    texts,
    timeless_records,
)

token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
STORE = "runtime.store=true"


def read(recipe: Recipe) -> TrainingData:
    """All examples in memory."""
    reading = read_examples(recipe, None)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            assert isinstance(end.value, TrainingData)
            return end.value


@given(pairs=st.lists(st.tuples(token_ids, token_ids), max_size=12))
@settings(max_examples=60)
def test_the_examples_written_are_the_examples_read(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    folder = tmp_path_factory.mktemp("store") / "store"
    examples = [Example(source, target, number) for number, (source, target) in enumerate(pairs)]
    write_store(folder, iter(examples), about={"key": "x"}, assets={"a.json": b"\0\xff"})
    stored = StoredExamples(folder)
    assert list(stored) == examples == stored[:]
    assert (stored.header["key"], stored.assets) == ("x", {"a.json": b"\0\xff"})
    for known, counted in zip(vars(stored.lengths).values(), vars(lengths_of(examples)).values(), strict=True):
        assert known.tolist() == counted.tolist()
    with pytest.raises(IndexError, match=f"example {len(examples)} of {len(examples)}"):
        stored[len(examples)]


def test_memory_does_not_grow_with_the_words_that_are_written(tmp_path: Path) -> None:
    """2,000 examples of 4,000 words are 64 MB as tuples; the buffer and its copies take an eighth of that at most."""
    examples = (Example((7,) * 2000, (8,) * 2000, i) for i in range(2000))
    tracemalloc.start()
    write_store(tmp_path / "s", examples, about={}, assets={})
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    stored = StoredExamples(tmp_path / "s")
    assert stored[1999].target == (8,) * 2000
    read = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "s" / "tokens").stat().st_size == 4 * 4000 * 2000
    assert written < 8_000_000 and read < 2_000_000


@pytest.mark.parametrize("kind", ["text", "conllu", "parallel", "tsv"])
def test_a_recipes_store_holds_what_would_be_in_memory(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path, 5, train=30, dev=4, test=3, types=200)
    tasks = {"text": "word_ordering", "conllu": "parsing", "parallel": "translation", "tsv": "translation"}
    overrides = ("text.max_length=9", "text.min_count=2")
    recipe = small_recipe(*overrides, task=tasks[kind], data=file_data(kind, tmp_path))
    plain = read(recipe)
    build_store(recipe, tmp_path / "run", None)
    stored = stored_examples(recipe, StoredExamples(tmp_path / "run" / "store"))
    assert list(stored.examples) == list(plain.examples)
    assert stored.left_out == plain.left_out and plain.left_out["too long"] > 0
    assert dict(stored.task.assets) == dict(plain.task.assets)
    assert open_store(recipe, tmp_path / "run", None) is not None


def test_training_from_a_store_is_training_from_memory(tmp_path: Path) -> None:
    """To the bit; stopped and gone on with from memory, too: only where examples lie differs."""
    data = short_text(tmp_path)
    finish(small_recipe(data=data), tmp_path / "memory")
    said = list(texts(finish(small_recipe(STORE, data=data), tmp_path / "disk")))
    assert said[0] == f"{tmp_path / 'disk' / 'store'}: writing the training examples there, once"
    stop_after(small_recipe(STORE, data=data), tmp_path / "both", 4)
    finish(small_recipe(data=data), tmp_path / "both")
    for name in ("disk", "both"):
        assert same_tensors(final_tensors(tmp_path / name), final_tensors(tmp_path / "memory"))
        assert timeless_records(tmp_path / name) == timeless_records(tmp_path / "memory")


def test_a_store_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe(STORE, data=short_text(tmp_path))
    stop_after(recipe, tmp_path / "run", 2)
    before = (tmp_path / "run" / "store" / "tokens").stat()
    monkeypatch.setattr("argbeam.runs.examples.write_store", None)  # a second time would fail
    said = list(texts(finish(recipe, tmp_path / "run")))
    assert not any("writing" in line for line in said)
    assert (tmp_path / "run" / "store" / "tokens").stat().st_mtime_ns == before.st_mtime_ns


def _damage(store: Path, how: str) -> None:
    tokens, lengths, header = (store / name for name in ("tokens", "lengths", "header"))
    match how:
        case "tokens":
            data = tokens.read_bytes()
            tokens.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:])
        case "cut":
            lengths.write_bytes(lengths.read_bytes()[:-3])
        case "gone":
            tokens.unlink()
        case "header":
            header.write_bytes(b'{"store": 1}')
        case "key":
            header.write_text(json.dumps({**json.loads(header.read_bytes()), "key": "other"}))
        case "file":
            (store.parent.parent / "train.txt").write_text("ba ko ti\nlu lu\n")


@pytest.mark.parametrize("how", ["tokens", "cut", "gone", "header", "key", "file"])
def test_a_store_that_is_damaged_or_out_of_date_is_built_anew(tmp_path: Path, how: str) -> None:
    recipe = small_recipe(STORE, data=short_text(tmp_path), stages={"only": {**PRETRAIN, "epochs": 1}})
    build_store(recipe, tmp_path / "run", None)
    assert open_store(recipe, tmp_path / "run", None) is not None
    _damage(tmp_path / "run" / "store", how)
    assert open_store(recipe, tmp_path / "run", None) is None
    said = list(texts(finish(recipe, tmp_path / "run")))
    assert said[0].endswith("writing the training examples there, once")
    stored = open_store(recipe, tmp_path / "run", None)
    assert stored is not None and list(stored) == list(read(recipe).examples)


def test_a_store_of_another_vocabulary_is_not_used(tmp_path: Path) -> None:
    """A run that starts from another one has that one's words; the same files make other numbers with it."""
    recipe = small_recipe(STORE, data=short_text(tmp_path))
    build_store(recipe, tmp_path / "run", None)
    fitted = StoredExamples(tmp_path / "run" / "store")
    vocabulary = json.loads(fitted.assets["vocabulary.json"])
    other = {"vocabulary.json": json.dumps([*vocabulary[:4], *reversed(vocabulary[4:])]).encode()}
    assert open_store(recipe, tmp_path / "run", other) is None
    build_store(recipe, tmp_path / "run", other)
    started = StoredExamples(tmp_path / "run" / "store")
    assert list(started) != list(fitted)
    assert open_store(recipe, tmp_path / "run", None) is None  # not fitted to these data
    assert open_store(recipe, tmp_path / "run", started.assets) is not None


def test_the_key_follows_content_and_settings_and_not_the_place(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        keys.append(store_key(small_recipe(data=short_text(tmp_path / name))))
    assert keys[0] == keys[1]
    data = short_text(tmp_path / "a")
    for setting in ("seed=2", "text.lowercase=true", "task.shuffle=epoch"):
        assert store_key(small_recipe(setting, data=data)) != keys[0], setting
    for setting in ("model.hidden=9", "batch.size=3", "data.dev=['train.txt']", "decode.beam=2"):
        assert store_key(small_recipe(setting, data=data)) == keys[0], setting


def test_a_kill_while_the_store_is_written_leaves_none(tmp_path: Path) -> None:
    def dies() -> Any:
        yield Example((4,), (5,), 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "store", dies(), about={}, assets={})
    with pytest.raises(DataError, match="cannot read"):
        StoredExamples(tmp_path / "store")
    write_store(tmp_path / "store", [Example((4,), (5,), 0)], about={}, assets={})
    assert len(StoredExamples(tmp_path / "store")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
