"""Where a run resumes: its newest good checkpoint, the settings that may differ from its own, and its data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argbeam.errors import CheckpointError, ConfigError
from argbeam.runs import layout
from argbeam.runs.checkpoint import Checkpoint, Latest, interpreting, latest, load, position_of, set_aside
from argbeam.runtime.group import Group
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import difference, in_short, read_recipe_json, recipe_from_json
from argbeam.training.state import Position

# Settings that may differ when a run is resumed: they do not change what is learnt.
_RUNTIME = ("device", "threads", "checkpoint_every", "store", "not_finite_limit", "tensorboard")
_FREE_TO_CHANGE = tuple(f"runtime.{key}" for key in _RUNTIME)
# Those of a stage that is not over: they say when it ends.
_ENDS = ("epochs", "patience")


@dataclass(frozen=True)
class Resumption:
    """What a run folder holds for training: whether the run is finished, lines for the user, and where to resume.

    `digests` are those of the data so far; none of a run of version 0.1.
    """

    finished: bool
    notices: list[str]
    checkpoint: Checkpoint | None
    digests: dict[str, str]


def look_for_all(recipe: Recipe, folder: Path, group: Group) -> Resumption:
    """`look` of the first process, in every process."""
    seen: list[Resumption] = []

    def look_once() -> list[Any]:
        seen.append(look(recipe, folder))
        name = seen[0].checkpoint and seen[0].checkpoint.path.name
        return [seen[0].finished, seen[0].notices, name, seen[0].digests]

    finished, notices, name, digests = group.first(look_once)
    if seen:
        return seen[0]
    return Resumption(finished, notices, load(folder / layout.CHECKPOINTS / name) if name else None, digests)


def check_same(
    recipe: Recipe,
    folder: Path,
    is_open: Callable[[str], bool] = lambda line: False,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Refuse to resume a run with another recipe than its own, except for differences that are open.

    Where recipe.json is gone, that of `checkpoint` counts.
    """
    path = folder / layout.RECIPE
    before = read_recipe_json(path) if path.exists() else _recipe_of(checkpoint)
    lines = difference(before, recipe) if before else []
    changed = [line for line in lines if not line.startswith(_FREE_TO_CHANGE) and not is_open(line)]
    if changed:
        cosine = [name for name, stage in recipe.stages.items() if stage.optimizer.follows_epochs]
        remedy = "choose another --out"
        if changed[0].startswith(tuple(f"stages.{name}.epochs:" for name in cosine)):
            remedy = (
                f"its cosine would have had other rates from the start; {remedy}, with start={folder} to go on from it"
            )
        raise ConfigError(f"{folder}: the run there has another recipe: {in_short(changed)}; {remedy}")


def look(recipe: Recipe, folder: Path) -> Resumption:
    """Check that the run in the folder, if there is one, can be resumed with this recipe; say what is odd about it.

    Damaged checkpoints newer than a good one are renamed. Without a good one they are an error: the files of a run are
    worth more than a fresh start.
    """
    found, model = latest(folder / layout.CHECKPOINTS), latest(folder / layout.MODEL)
    position = None if found.checkpoint is None else position_of(found.checkpoint)
    if position is not None and position.stage == len(recipe.stages):
        position = None  # version 0.1 saved no state of a stage that was over
    moved = found.checkpoint is None or bool(_digests_of(found.checkpoint))
    saved = found.checkpoint or model.checkpoint
    check_same(recipe, folder, lambda line: _is_open(line, recipe, position, moved=moved), saved)
    further = _trained_further(recipe, model)
    if model.checkpoint is not None and not further:
        said = [f"{folder}: training is finished; nothing to do"]
        return Resumption(True, said, None, _digests_of(model.checkpoint))
    rejected = [*found.rejected, *model.rejected]
    if rejected and found.checkpoint is None:
        raise CheckpointError(f"{rejected[0]}; no good checkpoint is left: restore one, or choose another --out")
    if further and position is None:
        raise ConfigError(
            f"{folder}: {in_short(further)}: no checkpoint is there to train further from; "
            f"a new --out with --set start={folder} starts from its model"
        )
    notices = []
    for name, part in ((layout.CHECKPOINTS, found), (layout.MODEL, model)):
        for line, file in zip(part.rejected, part.damaged, strict=True):
            aside = set_aside(folder / name / file)
            notices.append(f"{line}; renamed to {aside.name}, the checkpoint before it is used")
    recorded = (folder / layout.RECORDS).exists()
    if found.checkpoint is None and recorded:
        notices.append(f"{folder}: no checkpoint is there; training starts from the beginning")
    if found.checkpoint is not None and not recorded:
        notices.append(f"{folder}: {layout.RECORDS} is gone; reports will lack the epochs before this one")
    return Resumption(False, notices, found.checkpoint, _digests_of(found.checkpoint))


def _trained_further(recipe: Recipe, model: Latest) -> list[str]:
    """The differences of stages between a finished model and the recipe."""
    trained = _recipe_of(model.checkpoint)
    return [line for line in difference(trained, recipe) if line.startswith("stages.")] if trained else []


def _recipe_of(checkpoint: Checkpoint | None) -> Recipe | None:
    if checkpoint is None:
        return None
    with interpreting(checkpoint.path):
        return recipe_from_json(checkpoint.meta["recipe"], where=str(checkpoint.path))


def _digests_of(checkpoint: Checkpoint | None) -> dict[str, str]:
    if checkpoint is None:
        return {}
    with interpreting(checkpoint.path):
        return {str(name): str(digest) for name, digest in checkpoint.meta.get("data", {}).items()}


def _is_open(line: str, recipe: Recipe, position: Position | None, *, moved: bool) -> bool:
    """Whether a run at this position may have this difference of recipes. `moved`: its data is checked by digests."""
    key = line.partition(":")[0]
    if key == "data.root":
        return moved
    ends = {f"stages.{name}.{setting}": (i, name) for i, name in enumerate(recipe.stages) for setting in _ENDS}
    if key not in ends or position is None:
        return key in ends
    number, name = ends[key]
    begun = number == position.stage and (position.epoch, position.batch) != (0, 0)
    if begun and key.endswith(".epochs") and recipe.stages[name].optimizer.follows_epochs:
        return False  # with another number of epochs it would have had other rates from the start
    return number > position.stage or (number == position.stage and recipe.stages[name].epochs >= position.epoch)
