"""Every shipped recipe is complete, loads, trains in each of its stages and decodes."""

import lzma
import tomllib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from argbeam.data.generated.corpus import GeneratedSentence, sentences
from argbeam.runs.load import load
from argbeam.settings.models import ModelSizes
from argbeam.settings.recipe import Recipe
from argbeam.settings.recipe_files import load_recipe, purpose, shipped_recipes
from generated_files import FORMATS
from small_runs import finish, progress_of, texts

RECIPES = shipped_recipes()
ENDINGS = {"text": "txt", "conllu": "conllu", "conllx": "conllx", "tsv": "tsv", "source": "src", "target": "tgt"}
SMALL = ("text.min_count=1", "batch.size=2", "runtime.device=cpu")
SIZES = {
    "transformer": ("model.hidden=8", "model.heads=2", "model.feed_forward=5", "model.layers=1"),
    "lstm": ("model.hidden=6", "model.embedding=5"),
}


def two_updates(recipe: Path, folder: Path) -> Recipe:
    """The recipe with a tiny model, one epoch a stage, and four training sentences where it looks for its data."""
    loaded = load_recipe(recipe)
    sizes = SIZES["transformer" if loaded.model.kind.startswith("transformer") else "lstm"]
    overrides = [*SMALL, *sizes, *(f"stages.{stage}.epochs=1" for stage in loaded.stages)]
    overrides += [f"stages.{name}.batch.size=2" for name, stage in loaded.stages.items() if stage.batch.size]
    if loaded.data.kind == "generated":
        sizes = ("data.types=200", "data.train=4", "data.dev=2", "data.test=2")
        if loaded.task.kind == "recommendation":  # the first user has eight targets of training
            sizes = ("data.types=200", "data.train=1", "data.dev=1", "data.test=1", "batch.size=4")
        return load_recipe(recipe, [*overrides, *sizes])
    if recipe.parent.name == "constraints":
        _write_constrained(loaded, folder)
        return load_recipe(recipe, [*overrides, f"data.root={folder}"])
    lists = {name: value for name, value in loaded.data.model_dump().items() if isinstance(value, list)}
    for name, paths in lists.items():
        split, _, side = name.partition("_")
        for number, path in enumerate(paths):
            # Both sides of parallel data draw the same sentences.
            part = short_sentences(f"{split}{number}", 4 // len(paths) if split == "train" else 1)
            _write(folder / path, FORMATS[ENDINGS[side or loaded.data.kind]](part))
    if loaded.model.vectors:
        width = 5 if sizes == SIZES["lstm"] else 8
        _write(folder / loaded.model.vectors, f"2 {width}\n. {'1 ' * width}\nela {'2 ' * width}\n")
    return load_recipe(recipe, [*overrides, f"data.root={folder}"])


# Four pairs that the constraint of a recipe allows, by its corpus; of items, sequences with four targets of training.
PAIRS = {
    "regex": ["lines with a dog\t. * <M0> . *", "no vowel\t~ ( [ <VOW> ] )", "two\t( . ) { 2 , }", "word\t\\ b . \\ b"],
    "anselm": ["vnd\tund", "jn\tin", "yn\tihn", "vns\tuns"],
    "uspto": ["CCO\tCC.O", "c1ccccc1Br\tBrc1ccccc1.C", "CN\tC.N", "CC\tC.C"],
}
SEQUENCES, ITEMS = "p q r s p q\np q r s\n", "p\ta b c d\nq\ta b c e\nr\tf b c d\ns\ta g c d\n"


def _write_constrained(recipe: Recipe, folder: Path) -> None:
    data = recipe.data.model_dump()
    if recipe.task.kind == "recommendation":
        _write(folder / data["sequences"][0], SEQUENCES)
        _write(folder / data["items"][0], ITEMS)
        return
    corpus = next(name for name in PAIRS if name in data["train"][0].replace("nl-rx", "regex"))
    for split, size in (("train", 4), ("dev", 1), ("test", 1)):
        _write(folder / data[split][0], "".join(f"{line}\n" for line in PAIRS[corpus][:size]))
    if corpus == "anselm":
        _write(folder / "anselm/words.txt.xz", "und\nunser\n")


def short_sentences(name: str, size: int) -> list[GeneratedSentence]:
    stream = sentences(seed=crc32(name.encode()), types=200)
    return list(islice((s for s in stream if len(s.words) <= 6), size))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_two_updates_in_each_stage_and_decodes(name: str, tmp_path: Path) -> None:
    recipe = two_updates(RECIPES[name], tmp_path)
    events = finish(recipe, tmp_path / "run")
    assert [(p.stage, p.update, p.updates) for p in progress_of(events)] == [(stage, 2, 2) for stage in recipe.stages]
    assert any("vectors for" in text for text in texts(events)) == bool(recipe.model.vectors)
    run = load(tmp_path / "run", device="cpu")
    lines = [" ".join(item.surface) for item in run.task.read("test").items]
    assert len(run.decode(lines, beam=2)) == len(lines) > 0


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_is_and_leaves_no_stage_to_defaults(name: str) -> None:
    words = purpose(RECIPES[name]).split()
    assert len(words) > 4 and words[-1].endswith(".")
    table = tomllib.loads(RECIPES[name].read_text(encoding="utf-8"))
    assert {"name", "task", "data", "model", "batch", "stages"} <= set(table)
    for stage in table["stages"].values():
        assert {"epochs", "loss", "optimizer"} <= set(stage)
        assert "kind" in stage["loss"]
        adamw = stage["optimizer"].get("kind") == "adamw"
        stated = {"rate", "warmup", "schedule", "max_norm"} if adamw else {"encoder", "decoder", "output"}
        assert stated <= set(stage["optimizer"])


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith(("demo/", "small/"))])
def test_a_recipe_of_the_paper_states_what_the_paper_does(name: str) -> None:
    """Seed, beams, margin, cost, what is kept and how epochs are chosen are written out, not left to defaults."""
    table = tomllib.loads(RECIPES[name].read_text(encoding="utf-8"))
    assert {"seed", "text", "decode"} <= set(table)
    transformer = table["model"]["kind"] == "transformer"
    sizes = {"heads", "feed_forward", "tied", "positions"} if transformer else {"embedding"}
    assert {"layers", "hidden", "dropout", *sizes} <= set(table["model"])
    for stage in table["stages"].values():
        assert {"keep"} <= set(stage)
        if stage["loss"]["kind"] == "bso":
            assert {"train_beam", "start_beam", "epochs_per_beam", "margin", "cost"} <= set(stage["loss"])
            assert not transformer or {"rule", "normalise"} <= set(stage["loss"])
        if stage["loss"]["kind"] == "crf":
            assert {"train_beam", "start_beam", "epochs_per_beam", "constrained", "normalise"} <= set(stage["loss"])


@pytest.mark.parametrize("corpus", ["regex", "anselm", "uspto", "office"])
def test_the_systems_of_a_constrained_corpus_differ_in_their_losses_alone(corpus: str) -> None:
    """The first stage has the same budget and optimizer in all, the second where there is one."""
    recipes = [load_recipe(path) for name, path in RECIPES.items() if name.startswith(f"constraints/{corpus}_")]
    assert len(recipes) >= 2
    assert _all_equal([recipe.model_copy(update={"name": "", "stages": {}}) for recipe in recipes])
    stages = [[s.model_copy(update={"loss": None}) for s in recipe.stages.values()] for recipe in recipes]
    assert _all_equal([first for first, *_ in stages])
    assert _all_equal([rest for _, *rest in stages if rest])


@pytest.mark.parametrize("task", ["word_ordering", "parsing", "translation"])
def test_the_transformers_of_a_task_share_all_but_their_last_stage(task: str) -> None:
    """So that the model of cross-entropy is trained once, and is what the others start from."""
    recipes = [load_recipe(path) for name, path in RECIPES.items() if name.startswith(f"transformer/{task}_")]
    assert len(recipes) >= 3
    shared = [recipe.model_copy(update={"name": "", "stages": list(recipe.stages.values())[:1]}) for recipe in recipes]
    assert _all_equal(shared)
    assert [len(recipe.stages) for recipe in recipes].count(1) == 1


@pytest.mark.parametrize("task", ["word_ordering", "parsing", "translation"])
def test_the_systems_of_a_task_differ_in_their_stages_and_in_what_model_they_are(task: str) -> None:
    """What is compared in a table has the same data, text and batches, and models of the same sizes."""
    recipes = [load_recipe(path) for name, path in RECIPES.items() if name.startswith(f"{task}/")]
    assert len(recipes) >= 3
    for part in ("task", "data", "text", "batch", "decode"):
        assert _all_equal([getattr(recipe, part) for recipe in recipes]), part
    for size in ModelSizes.model_fields:
        assert _all_equal([getattr(recipe.model, size) for recipe in recipes]), size
    for kind in {recipe.model.kind for recipe in recipes}:
        assert _all_equal([recipe.model for recipe in recipes if recipe.model.kind == kind]), kind


def _all_equal(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)
