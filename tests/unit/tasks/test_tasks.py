"""What every task does: the same items from files and from the generated corpus, and a task from its assets alone."""

from pathlib import Path

import pytest

from argbeam.tasks import TASKS
from argbeam.tasks.transitions import is_action
from generated_files import write_files
from small_runs import file_data, small_recipe

GENERATED = {"kind": "generated", "types": 200, "seed": 5, "train": 8, "dev": 4, "test": 3}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("word_ordering", "text"), ("word_ordering", "conllu"), ("word_ordering", "conllx")),
        *(("parsing", "conllu"), ("parsing", "conllx"), ("translation", "parallel"), ("translation", "tsv")),
    ],
)
def test_files_of_the_generated_corpus_have_its_items(tmp_path: Path, name: str, kind: str) -> None:
    write_files(tmp_path, 5, train=8, dev=4, test=3, types=200)
    generated = TASKS[name].fit(small_recipe(task=name, data=GENERATED))
    task = TASKS[name].fit(small_recipe(task=name, data=file_data(kind, tmp_path)))
    assert (task.source, task.target) == (generated.source, generated.target)
    for split, size in (("train", 8), ("dev", 4), ("test", 3)):
        found = task.read(split)
        assert len(found.items) == size
        assert found == generated.read(split)
        if name == "parsing":  # unknown words cost nothing there, unknown labels do
            items = [item for item in found.items if all(s in task.target for s in item.target if is_action(s))]
            outputs = [task.example(item, 0).target for item in items]
            assert task.score(items, outputs).parts == {"uas": 100.0, "las": 100.0}


@pytest.mark.parametrize(
    ("name", "setting"), [("word_ordering", "task.shuffle=epoch"), ("parsing", "task.punctuation=none")]
)
def test_a_task_comes_back_from_its_assets(name: str, setting: str) -> None:
    recipe = small_recipe(setting, "text.max_vocabulary=9", task=name, data=GENERATED)
    task = TASKS[name].fit(recipe)
    assert sum(not is_action(word) for word in task.source.words) == 4 + 9
    assert TASKS[name].load(recipe, task.assets) == task
