"""The power of the length that sums of log-probabilities are divided by, chosen on dev and kept with the run.

Sums prefer short outputs. How much a model needs of the remedy depends on the model and the data, so the power is
chosen where epochs are: on dev, once, and never on the split that is reported.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from argbeam.decoding.evaluate import Decoder, evaluate
from argbeam.errors import ArgbeamError
from argbeam.files import append_record, read_records
from argbeam.models.contract import Network
from argbeam.search.score_rules import LogprobSum
from argbeam.tasks.contract import Item

POWERS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)


@dataclass(frozen=True)
class Choice:
    """The power chosen, and the dev score of each that was tried, in the order of `POWERS`."""

    power: float
    scores: tuple[float, ...]


def choose(decoder: Decoder, items: Sequence[Item], *, beam: int) -> Choice:
    """Decode with every power; the best score wins, and the smallest power among equals."""
    scores = []
    for power in POWERS:
        powered = replace(decoder, rule=LogprobSum(power))
        scores.append(evaluate(powered, items, beam=beam).score.value)
    return Choice(POWERS[scores.index(max(scores))], tuple(scores))


def kept_power(file: Path, key: Mapping[str, Any]) -> float | None:
    """The power that was chosen before for this model and this search, if it was."""
    if not file.exists():
        return None
    same = (record for record in read_records(file).records if key.items() <= record.items())
    return next((float(record["power"]) for record in same), None)


def keep_power(file: Path, key: Mapping[str, Any], choice: Choice) -> None:
    """Write the choice down, so that dev is decoded for it once."""
    try:
        append_record(file, {**key, "power": choice.power, "powers": POWERS, "scores": choice.scores})
    except OSError as error:
        raise ArgbeamError(
            f"{file}: cannot be written: {error.strerror}; the length power chosen on dev is kept there"
        ) from None


def fingerprint(model: Network) -> str:
    """Of the weights: a choice holds for the model that it was made for."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
