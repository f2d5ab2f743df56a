"""One step of a reproduction in a process of its own: `python -m argbeam.reproduce.worker VERB ...`.

Its standard input is a pipe from the process that started it. When that process ends, killed or not, the pipe closes,
and the step stops as it does for a signal: nothing goes on unseen.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from argbeam.errors import ArgbeamError, CheckpointError, ConfigError, DataError, DeviceError
from argbeam.reproduce.steps import TO_MEND

TIMED_BEAMS = (2, 3, 4, 5, 6)


def main() -> None:
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    verb, *arguments = sys.argv[1:]
    try:
        sys.exit({"run": _run, "time": _time}[verb](arguments))
    except ArgbeamError as error:
        print(f"argbeam: error: {error}", file=sys.stderr)
        sys.exit(exit_code(error))


def exit_code(error: ArgbeamError) -> int:
    """Memory and the disk may be free the next time; a recipe, a file or a device is what it is."""
    return TO_MEND if isinstance(error, ConfigError | DataError | CheckpointError | DeviceError) else 1


def _stop_with_parent() -> None:
    # Not through sys.stdin, whose lock would be held when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _run(arguments: Sequence[str]) -> int:
    """Train, or go on, and then do what scoring is missing: one process, so that files are read once."""
    from argbeam.reproduce.plan import Scoring
    from argbeam.reproduce.scores import score_planned
    from argbeam.runs.layout import is_trained
    from argbeam.runs.session import train_run
    from argbeam.settings.recipe_files import load_recipe

    path, folder, *keys = arguments
    recipe = load_recipe(path)
    if not is_trained(Path(folder)):
        outcome = train_run(recipe, Path(folder))
        if outcome.signal:
            return 128 + outcome.signal
    scorings = [
        Scoring(one["split"], tuple(one["beams"]), tuple(one["powers"]), one["stop"]) for one in map(json.loads, keys)
    ]
    score_planned(Path(folder), scorings, root=getattr(recipe.data, "root", ""))
    return 0


def _time(arguments: Sequence[str]) -> int:
    import torch

    from argbeam.bench import BenchShape, bench
    from argbeam.files import write_atomic
    from argbeam.runtime.device import choose_device, set_precision

    path, device, rounds, *sizes = arguments
    chosen = choose_device(device)
    set_precision(chosen, tf32=True)
    rows = bench(
        BenchShape(*map(int, sizes)), device=chosen, train_beams=TIMED_BEAMS, test_beams=(5,), rounds=int(rounds)
    )
    name = torch.cuda.get_device_name() if chosen.type == "cuda" else "cpu"
    shape = dict(zip(("batch", "source", "target", "vocabulary", "layers", "hidden"), map(int, sizes), strict=True))
    found = {"device": name, "shape": shape, "rows": [row.as_dict() for row in rows]}
    write_atomic(Path(path), json.dumps(found).encode())
    return 0


if __name__ == "__main__":
    main()
