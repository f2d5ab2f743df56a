"""Load, measured: memory and times of decoding many lines and of training on many pairs.

    python tools/load.py decode RUN-PARENT 1000000      decode a million sentences from stdin
    python tools/load.py train FOLDER 10000000 500      write ten million pairs, train 500 updates, start again
    python tools/load.py serve RUN 50 20                50 clients at once, 20 requests each, all answers compared

Each prints JSON lines. Sentences are those of the generated corpus, each with a number as one more word, so that no two
of a thousand are alike.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

_NUMBERS = 1000
# The generated corpus and the tables of data files are those of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


def pair_lines(number: int) -> Iterator[tuple[str, str]]:
    """So many sentences with their translations."""
    from generated_files import generate

    base = [(" ".join(s.words), " ".join(s.translation)) for s in generate(seed=1, size=2003, types=500)]
    for i in islice(count(), number):
        source, target = base[i % len(base)]
        yield f"{source} {i % _NUMBERS}", f"{target} {i % _NUMBERS}"


def resident(process: int | None = None) -> float:
    """MB of memory that a process holds now, or this one."""
    status = Path(f"/proc/{process or os.getpid()}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def tiny_run(folder: Path) -> Path:
    """A trained run, to decode with; how well it does is of no matter."""
    from argbeam.runs.train import train
    from argbeam.settings.recipe_files import parse_recipe

    list(train(parse_recipe(recipe({"kind": "generated", "types": 200, "train": 64, "dev": 4, "test": 0})), folder))
    return folder


def decode(run: Path, sentences: int, *, samples: int = 40) -> list[tuple[int, float]]:
    """Decode so many sentences through a pipe: after how many outputs the process held how many MB."""
    command = [sys.executable, "-m", "argbeam", "decode", str(run), "--beam", "1"]
    found = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        feeder = threading.Thread(target=_feed, args=(process.stdin, sentences))
        feeder.start()
        done = 0
        for done, _ in enumerate(process.stdout, start=1):
            if done % max(1, sentences // samples) == 0:
                found.append((done, resident(process.pid)))
        feeder.join()
        assert (process.wait(), done) == (0, sentences)
    return found


def _feed(stream: Any, sentences: int) -> None:
    with stream:
        for source, _ in pair_lines(sentences):
            stream.write(source.encode() + b"\n")


def write_pairs(folder: Path, pairs: int) -> dict[str, Any]:
    """Files of so many training pairs, and their data table."""
    from small_runs import file_data

    folder.mkdir(parents=True, exist_ok=True)
    for name, size in (("train", pairs), ("dev", 20)):
        with (folder / f"{name}.src").open("w") as source, (folder / f"{name}.tgt").open("w") as target:
            for one, other in pair_lines(size):
                source.write(one + "\n")
                target.write(other + "\n")
    return file_data("parallel", folder, test_source=[], test_target=[])


def train_some(folder: Path, data: dict[str, Any], updates: int) -> list[dict[str, Any]]:
    """Train so many updates from a store, in a process of its own: seconds and MB at what happened.

    With none, the process leaves when all is ready for the first one.
    """
    command = [sys.executable, __file__, "_train", str(folder), json.dumps(data), str(updates)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _train_here(folder: Path, data: dict[str, Any], updates: int) -> None:
    started = time.perf_counter()

    from argbeam.runs.train import train
    from argbeam.settings.recipe_files import parse_recipe
    from argbeam.training.events import Notice, Progress

    def say(event: str, **more: Any) -> None:
        seconds = round(time.perf_counter() - started, 2)
        print(json.dumps({"event": event, "seconds": seconds, "mb": round(resident(), 1), **more}), flush=True)

    say("imported")
    for event in train(parse_recipe(recipe(data)), folder):
        if isinstance(event, Notice):
            say(event.text.rpartition(": ")[2])
            if not updates and "training sentences" in event.text:
                break
        if isinstance(event, Progress):
            say("update", number=event.update)
            if event.update >= updates:
                break


def serve(run: Path, clients: int, requests: int) -> dict[str, Any]:
    """Ask a server with many clients at once: how long answers take, and how many are not those of the library."""
    import http.client
    import statistics
    from concurrent.futures import ThreadPoolExecutor

    import argbeam

    opened, port = argbeam.load(run), 8765
    lines = [source for source, _ in pair_lines(clients * requests)]
    command = [sys.executable, "-m", "argbeam", "serve", str(run), "--port", str(port)]

    def ask(line: str) -> tuple[float, str]:
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        body = json.dumps({"lines": [line]}).encode()
        connection.request("POST", "/decode", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return time.perf_counter() - started, answer["outputs"][0][0]["text"]

    with subprocess.Popen(command) as process:
        while True:
            try:
                ask(lines[0])
                break
            except ConnectionRefusedError:
                time.sleep(0.2)
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(ask, lines))
        seconds = time.perf_counter() - started
        process.terminate()
    cuts = statistics.quantiles((taken for taken, _ in answers), n=100)
    wrong = sum(text != expected for (_, text), expected in zip(answers, opened.decode(lines), strict=True))
    figures = {"p50_ms": 1000 * cuts[49], "p99_ms": 1000 * cuts[98], "requests_per_s": len(lines) / seconds}
    return {"requests": len(lines), "wrong": wrong, **{name: round(value, 1) for name, value in figures.items()}}


def recipe(data: dict[str, Any]) -> dict[str, Any]:
    """Small enough that what is measured is not the model."""
    stage = {
        "epochs": 1,
        "loss": {"kind": "cross_entropy"},
        "optimizer": {"encoder": 0.02, "decoder": 0.02, "output": 0.1},
        "keep": "last",
    }
    return {
        "name": "load",
        "task": {"kind": "translation"},
        "data": data,
        "model": {"hidden": 16, "embedding": 16},
        "batch": {"size": 64},
        "stages": {"only": stage},
        "decode": {"length_factor": 0.0, "length_extra": 4},
        "runtime": {"device": "cpu", "threads": 1, "store": True},
    }


def main() -> None:
    match sys.argv[1:]:
        case ["decode", folder, sentences]:
            for done, megabytes in decode(tiny_run(Path(folder) / "run"), int(sentences)):
                print(json.dumps({"sentences": done, "mb": round(megabytes, 1)}))
        case ["train", folder, pairs, updates]:
            started = time.perf_counter()
            data = write_pairs(Path(folder) / "data", int(pairs))
            print(json.dumps({"event": "files written", "seconds": round(time.perf_counter() - started, 1)}))
            for attempt in ("first start", "second start"):
                for line in train_some(Path(folder) / "run", data, int(updates)):
                    print(json.dumps({"start": attempt, **line}))
        case ["serve", run, clients, requests]:
            print(json.dumps(serve(Path(run), int(clients), int(requests))))
        case ["_train", folder, table, updates]:
            _train_here(Path(folder), json.loads(table), int(updates))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
