"""The command's result in tests, and a recipe that trains in a moment."""

import subprocess
from collections.abc import Callable
from pathlib import Path

RECIPE = """# A tiny recipe.
name = "tiny"
task = {{ kind = "{task}" }}
data = {{ kind = "generated", types = 200, train = 40, dev = 6, test = 6 }}
model = {{ hidden = 8, embedding = 8 }}
batch = {{ size = 8 }}
decode = {{ length_factor = 1.0 }}
runtime = {{ device = "cpu" }}

[stages.pretrain]
epochs = 1
loss = {{ kind = "cross_entropy" }}
optimizer = {{ encoder = 0.05, decoder = 0.05, output = 0.2 }}
{more}"""
BSO = """
[stages.bso]
epochs = 1
loss = { kind = "bso", train_beam = 3 }
optimizer = { encoder = 0.05, decoder = 0.05, output = 0.1 }
"""

Result = subprocess.CompletedProcess[str]
Command = Callable[..., Result]


def write_recipe(folder: Path, *, task: str = "word_ordering", more: str = "") -> Path:
    path = folder / f"{task}.toml"
    path.write_text(RECIPE.format(task=task, more=more), encoding="utf-8")
    return path
