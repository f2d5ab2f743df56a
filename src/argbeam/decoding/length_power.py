"""The length power: sums of log-probabilities are divided by length ** power, and the power is chosen on dev.

Sums prefer short outputs. How much correction a model needs depends on the model and the data, so the power is chosen
once, on dev, and saved with the run; never on the split that is reported.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from argbeam.decoding.batch_decoder import BatchDecoder, Evaluation, evaluate
from argbeam.files import append_record, read_records, writing
from argbeam.models.contract import Network
from argbeam.search.score_rules import with_power
from argbeam.tasks.contract import Item

POWERS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)


def evaluate_powers(
    decoder: BatchDecoder, items: Sequence[Item], powers: Sequence[float] = POWERS, *, beam: int
) -> dict[float, Evaluation]:
    """Decode and score the items with each power."""
    return {
        power: evaluate(replace(decoder, rule=with_power(decoder.rule, power)), items, beam=beam) for power in powers
    }


def best_power(scores: Mapping[float, float]) -> float:
    """The power with the highest score; of equal ones the first."""
    return max(scores, key=lambda power: scores[power])


def read_power(file: Path, key: Mapping[str, Any]) -> float | None:
    """The power saved for this key, which names the model and the search; None: none was."""
    if not file.exists():
        return None
    same = (record for record in read_records(file) if key.items() <= record.items())
    return next((float(record["power"]) for record in same), None)


def save_power(file: Path, key: Mapping[str, Any], scores: Mapping[float, float]) -> None:
    """Save the best power with the scores of all, so that dev is decoded for it once."""
    record = {**key, "power": best_power(scores), "powers": list(scores), "scores": list(scores.values())}
    with writing(file, "the length power chosen on dev is saved there; evaluate --no-keep writes nothing"):
        append_record(file, record)


def fingerprint(model: Network) -> str:
    """A digest of the weights: a power holds for the model that it was chosen for."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
