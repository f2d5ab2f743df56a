"""What must hold before a run is trained: its files are there, and what it goes on from is its own."""

from pathlib import Path

from argbeam.data.readers.text import COMPRESSIONS, unpacked
from argbeam.errors import ConfigError, DataError
from argbeam.runs import layout as folders
from argbeam.runs.model import vectors_path
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import difference, in_short, read_recipe_json
from argbeam.tasks.sources import named_files

# What may differ between a run's recipe and the one it is resumed with: it does not change what is learnt.
_FREE_TO_CHANGE = (
    "runtime.device",
    "runtime.threads",
    "runtime.checkpoint_every",
    "runtime.store",
    "runtime.not_finite_limit",
    "runtime.tensorboard",
)


def check_files(recipe: Recipe) -> None:
    """Every file that the recipe names must be there before training starts, the test files too: hours may pass."""
    named = named_files(recipe.data)
    named += [("model.vectors", vectors_path(recipe))] if recipe.model.vectors else []
    for key, path in named:
        if not path.exists():
            raise DataError(f"{path}: no such file; {key} names it{_otherwise_packed(path)}")


def _otherwise_packed(path: Path) -> str:
    """A hint at the same file with another ending of compression, or nothing."""
    others = (Path(f"{unpacked(path)}{ending}") for ending in COMPRESSIONS)
    there = next((other for other in others if other.exists()), None)
    return f", but {there.name} is there" if there else ""


def check_same(recipe: Recipe, folder: Path) -> None:
    """A run goes on with its own recipe."""
    path = folder / folders.RECIPE
    if not path.exists():
        return
    before = read_recipe_json(path)
    changed = [line for line in difference(before, recipe) if not line.startswith(_FREE_TO_CHANGE)]
    if changed:
        raise ConfigError(f"{folder}: the run there has another recipe: {in_short(changed)}; choose another --out")


def check_start(recipe: Recipe, before: Recipe) -> None:
    """What a run starts from must read the same text with the same network."""
    changed = [line for line in difference(before, recipe) if line.startswith(("task.", "model.", "text."))]
    changed = [line for line in changed if not line.startswith(("model.dropout", "model.vectors"))]
    if changed:
        raise ConfigError(f"start = {recipe.start}: that run differs in {in_short(changed)}")
