"""Proof of a refactor: train five demo recipes for 50 updates each and compare every number.

    python tools/same_numbers.py write NUMBERS.json      # with the code as it was
    python tools/same_numbers.py compare NUMBERS.json    # with the code as it is

Weights are compared by the SHA-256 of each tensor, records by value but for times, versions and renamed keys.
Each recipe also decodes its dev split at beam 5, whose outputs and scores are compared.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors import safe_open

RECIPES = ("seq2seq", "bso", "conbso", "parsing_conbso", "translation_bso")
TIMES = {"seconds", "total_seconds", "words_per_second", "version", "torch", "memory_mb"}
RENAMED: dict[str, str] = {}  # old key of a record -> new key


def settings(recipe: str) -> list[str]:
    """800 sentences in batches of 32 are 25 updates an epoch: 50 updates in two stages, or in one of two epochs."""
    small = ["data.train=800", "data.dev=40", "data.test=8", "batch.size=32", "runtime.device=cpu"]
    if recipe == "seq2seq":
        return [*small, "stages.train.epochs=2"]
    return [*small, "stages.pretrain.epochs=1", "stages.bso.epochs=1", "stages.bso.loss.start_beam=4"]


def numbers_of(recipe: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        sets = [part for key in settings(recipe) for part in ("--set", key)]
        command = [sys.executable, "-m", "argbeam"]
        subprocess.run([*command, "train", f"demo/{recipe}", "--out", run, *sets], check=True, capture_output=True)
        subprocess.run([*command, "evaluate", run, "--split", "dev", "--beam", "5"], check=True, capture_output=True)
        tensors = {}
        for path in sorted([*(run / "model").glob("*.safetensors"), *(run / "checkpoints").glob("*.safetensors")]):
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118
                    data = file.get_tensor(name).numpy().tobytes()
                    tensors[f"{path.parent.name}/{path.name}/{name}"] = hashlib.sha256(data).hexdigest()
        records = [
            {RENAMED.get(key, key): value for key, value in json.loads(line).items() if key not in TIMES}
            for line in (run / "records.jsonl").read_text().splitlines()
        ]
        predictions = {
            path.name: path.read_text() for path in sorted((run / "predictions").rglob("*")) if path.is_file()
        }
        return {"tensors": tensors, "records": records, "predictions": predictions}


def main() -> None:
    verb, path = sys.argv[1], Path(sys.argv[2])
    with ThreadPoolExecutor(2) as pool:
        numbers = dict(zip(RECIPES, pool.map(numbers_of, RECIPES), strict=True))
    if verb == "write":
        path.write_text(json.dumps(numbers, indent=1))
        return
    before = json.loads(path.read_text())
    differences = [
        f"{recipe}: {part} differ"
        for recipe in RECIPES
        for part in before[recipe]
        if json.loads(json.dumps(numbers[recipe][part])) != before[recipe][part]
    ]
    for recipe in RECIPES:
        print(f"{recipe}: {len(before[recipe]['tensors'])} tensors, {len(before[recipe]['records'])} records")
    print("\n".join(differences) or "all equal, to the last digit")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
