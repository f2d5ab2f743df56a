"""What a loss learns besides the model is trained, saved and taken up again like the model's own weights."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from argbeam.runs import checkpoint
from argbeam.settings import Recipe
from small_runs import (
    PRETRAIN,
    RATES,
    file_data,
    final_tensors,
    finish,
    same_tensors,
    small_recipe,
    stop_after,
    timeless_records,
)

# Three updates an epoch; the border moves in every epoch of the second stage.
MIXER = {
    "epochs": 3,
    "loss": {"kind": "mixer", "cross_entropy_epochs": 1, "epochs_per_border": 1, "words_per_border": 2},
    "optimizer": {**RATES, "average": 0.7},
    "keep_beam": 2,
}
LATER = {"epochs": 1, "loss": {"kind": "mrt", "size": 2}, "optimizer": RATES, "keep": "last"}


def own_tensors(folder: Path) -> dict[str, Tensor]:
    """The loss's own weights in a run's newest checkpoint."""
    found = checkpoint.latest(folder / "checkpoints").checkpoint
    assert found is not None
    return {name: value for name, value in found.tensors.items() if name.startswith("loss.")}


def mixer_recipe(folder: Path, *overrides: str) -> Recipe:
    for split, lines in {"train": 6, "dev": 2, "test": 1}.items():
        for ending, words in {"src": "ba ko ti lu", "tgt": "li ta ok ab"}.items():
            text = "".join(" ".join(words.split()[: 2 + n % 3]) + "\n" for n in range(lines))
            (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")
    stages = {"pretrain": {**PRETRAIN, "epochs": 1}, "mixer": MIXER, "mrt": LATER}
    return small_recipe(*overrides, task="translation", data=file_data("parallel", folder), stages=stages)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    folder = tmp_path_factory.mktemp("whole")
    recipe = mixer_recipe(folder)
    finish(recipe, folder / "run")
    return recipe, folder / "run"


@pytest.mark.parametrize("updates", [4, 8, 13])
def test_a_run_stopped_under_a_loss_with_weights_goes_on_to_the_same_end(
    whole: tuple[Recipe, Path], tmp_path: Path, updates: int
) -> None:
    """Before and after the border moves, within epochs and at their ends, and in the stage that follows: to the bit."""
    recipe, folder = whole
    stop_after(recipe, tmp_path / "run", updates)
    # Minimum risk, from the twelfth update on, has no weights.
    assert set(own_tensors(tmp_path / "run")) == ({"loss.weight_H", "loss.bias"} if updates < 12 else set())
    finish(recipe, tmp_path / "run")
    assert same_tensors(final_tensors(folder), final_tensors(tmp_path / "run"))
    assert timeless_records(folder) == timeless_records(tmp_path / "run")


def test_the_weights_of_a_loss_are_learnt_at_their_rate_and_are_no_part_of_the_model(
    tmp_path: Path, whole: tuple[Recipe, Path]
) -> None:
    """With a rate of 0 they stay at zero, where they start. The baseline is as wide as the model's outputs."""
    stop_after(whole[0], tmp_path / "learnt", 9)
    assert all(value.any() for value in own_tensors(tmp_path / "learnt").values())
    stop_after(mixer_recipe(tmp_path, "stages.mixer.loss.baseline_rate=0.0", "model.hidden=7"), tmp_path / "still", 9)
    still = own_tensors(tmp_path / "still")
    assert not any(value.any() for value in still.values())
    assert still["loss.weight_H"].shape == (7,)
    assert not [name for name in final_tensors(whole[1]) if name.startswith("loss.")]


def test_what_was_drawn_is_in_the_records(whole: tuple[Recipe, Path]) -> None:
    """No own words in the epoch of cross-entropy, then more and more; rewards and risks lie between 0 and 1."""
    epochs = {r["epoch"]: r for r in timeless_records(whole[1]) if r["kind"] == "epoch" and r["stage"] == "mixer"}
    assert "own_words_per_word" not in epochs[0]
    assert 0 < epochs[1]["own_words_per_word"] < epochs[2]["own_words_per_word"]
    assert all(0 <= epochs[e]["reward_per_sentence"] <= 1 for e in (1, 2))
    (last,) = (r for r in timeless_records(whole[1]) if r["kind"] == "epoch" and r["stage"] == "mrt")
    assert 0 <= last["risk_per_sentence"] <= 1
    assert 1 <= last["candidates_per_sentence"] <= 3
    assert torch.isfinite(torch.tensor(last["gradient_norm"]))
