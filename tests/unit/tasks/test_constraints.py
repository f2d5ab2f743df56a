"""Constraints of tasks of open length: entries, forbidden targets, and runs that decode without the list."""

import re
from pathlib import Path

import pytest

from argbeam.data.vocabulary import EOS
from argbeam.errors import ConfigError, DataError
from argbeam.runs.load import load
from argbeam.runs.train import train
from argbeam.settings import Recipe
from argbeam.settings.data import TranslationTask
from argbeam.settings.recipe_files import parse_recipe
from argbeam.tasks.constraints import constraint_facts, in_words
from argbeam.tasks.translation import Translation
from argbeam.training.events import Notice
from refusals import refusal
from small_runs import PRETRAIN, file_data, small_recipe

PAIRS = ["a b\tx y", "b\ty", "b a\ty x z", "a\tx"]
ONE_EPOCH = {"pretrain": {**PRETRAIN, "epochs": 1}}


def recipe_of(folder: Path, entries: str, *overrides: str) -> Recipe:
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("\n".join(PAIRS) + "\n")
    (folder / "list.txt").write_text(entries)
    constraint = ("task.constraint.kind=trie", "task.constraint.file=list.txt", "decode.beam=4", *overrides)
    return small_recipe(*constraint, task="translation", data=file_data("tsv", folder), stages=ONE_EPOCH)


def outputs_of(task: Translation, *lines: str) -> set[tuple[int, ...]]:
    return {(*task.target.encode(line.split()), EOS) for line in lines}


def test_entries_of_the_list_are_valid_outputs(tmp_path: Path) -> None:
    """`q` is unknown; `x y` stands twice; `z` is valid although no target."""
    task = Translation.fit(recipe_of(tmp_path, "x y\ny\ny x z\nx\nz\nx q\nx y\n"))
    assert constraint_facts(task) == {"entries": 5, "entries with unknown tokens left out": 1}
    assert task.valid.constraint is not None
    for output in outputs_of(task, "x y", "y", "y x z", "x", "z"):
        assert task.valid.constraint.accepts(output)
    for output in outputs_of(task, "x q", "y x", "z z", ""):
        assert not task.valid.constraint.accepts(output)
    assert len(task.read("train").items) == 4


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    assert in_words({"entries": 1, "entries with unknown tokens left out": 1000}) == (
        "1 entry, 1,000 entries with unknown tokens left out"
    )
    assert in_words({"states on the device": 1}) == "1 state on the device"
    assert in_words({"states on the device": 2}) == "2 states on the device"


def test_training_targets_can_be_entries(tmp_path: Path) -> None:
    task = Translation.fit(recipe_of(tmp_path, "z\n", "task.constraint.training_targets=true"))
    assert constraint_facts(task) == {"entries": 5, "entries with unknown tokens left out": 0}


def test_a_forbidden_target_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    task = Translation.fit(recipe_of(tmp_path, "x y\ny\nx\n"))
    for split in ("train", "dev", "test"):
        with pytest.raises(DataError) as error:
            task.read(split)
        assert str(error.value) == (
            f"{tmp_path / split}.tsv:3: the target 'y x z' is not a valid output under task.constraint; accepted: "
            'valid targets, or task.constraint.forbidden = "leave_out"'
        )


def test_an_unknown_token_of_a_forbidden_target_is_named(tmp_path: Path) -> None:
    """The pattern allows `q`, the vocabulary does not have it."""
    task = Translation.fit(
        recipe_of(tmp_path, "[a-z ]+", "task.constraint.kind=grammar", "task.constraint.notation=regex")
    )
    (tmp_path / "dev.tsv").write_text("a\tx q\n")
    message = (
        f"{tmp_path}/dev.tsv:1: the target 'x q' is not a valid output under task.constraint ('q' is an unknown token)"
    )
    assert refusal(lambda: task.read("dev")).startswith(message)


def test_a_target_that_is_nested_too_deeply_says_so(tmp_path: Path) -> None:
    """Two brackets are to be closed, and the stack holds one."""
    grammar = 'start: "(" start ")" | "x"'
    recipe = recipe_of(tmp_path, grammar, "task.constraint.kind=grammar", "task.constraint.depth=1")
    (tmp_path / "train.tsv").write_text("a\t( ( x ) )\n")
    message = (
        "'( ( x ) )' is not a valid output under task.constraint (it is nested more deeply than task.constraint.depth"
    )
    assert message in refusal(lambda: Translation.fit(recipe).read("train"))


def test_a_forbidden_target_may_be_left_out_of_training_and_stays_in_dev_and_test(tmp_path: Path) -> None:
    task = Translation.fit(recipe_of(tmp_path, "x y\ny\nx\n", "task.constraint.forbidden=leave_out"))
    train = task.read("train")
    assert (len(train.items), train.left_out) == (3, {"forbidden by the constraint": 1})
    for split in ("dev", "test"):
        held = task.read(split)
        assert len(held.items) == 4 and held.left_out == {}


def test_a_forbidden_target_of_characters_is_shown_as_it_is_written(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "y\nyxz\n")
    table = recipe.model_dump() | {"task": {**recipe.task.model_dump(), "kind": "text2text", "target": "characters"}}
    task = Translation.fit(parse_recipe(table))
    assert f"the target {'x y'!r} is not" in refusal(lambda: task.read("train"))


def test_what_no_sentence_is_left_by_is_named(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "y y\n", "task.constraint.forbidden=leave_out", "text.max_length=2")
    assert refusal(lambda: list(train(recipe, tmp_path / "run"))) == (
        "no training sentence is left (3 forbidden by the constraint, 1 too long); task.constraint says which targets "
        "are valid; text.min_length = 1 and text.max_length = 2 say which lengths are taken"
    )
    recipe = recipe_of(tmp_path, "z\n", "task.constraint.forbidden=leave_out")
    assert refusal(lambda: list(train(recipe, tmp_path / "run"))) == (
        "no training sentence is left (4 forbidden by the constraint); task.constraint says which targets are valid"
    )


def test_a_run_reports_what_is_left_out_and_decodes_without_its_list(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "x y\ny\nx\nx q\n", "task.constraint.forbidden=leave_out")
    lines = [event.text for event in train(recipe, tmp_path / "run") if isinstance(event, Notice)]
    assert "dev: no output can equal 1 of 4 targets: the constraint forbids them" in lines
    assert "left out of training: 1 forbidden by the constraint" in lines
    assert "constraint: 3 entries, 1 entry with unknown tokens left out" in lines
    (tmp_path / "list.txt").unlink()
    run = load(tmp_path / "run", device="cpu")
    ((_, decoded),) = run.search(["a b a"], beam=4, n_best=4)
    assert {h.tokens for h in decoded.hypotheses if h.finished} == outputs_of(run.task, "x y", "y", "x")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.constraint.file=''", "task.constraint: a trie needs entries: file = "),
        ("task.constraint.kind=try", 'task.constraint.kind = "try": must be one of none, trie, grammar'),
        ("task.constraint.forbidden=drop", 'task.constraint.forbidden = "drop": must be one of error, leave_out'),
    ],
)
def test_wrong_settings_of_a_constraint_are_one_line(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(lambda: recipe_of(tmp_path, "x\n", override), error=ConfigError)


GRAMMAR = 'start: "x" start? | "y" ("x" "z")?'


def test_a_run_under_a_grammar_writes_its_outputs_only(tmp_path: Path) -> None:
    """Any number of `x`, then perhaps `y` or `y x z`. The file is not needed to decode."""
    recipe = recipe_of(tmp_path, GRAMMAR, "task.constraint.kind=grammar")
    lines = [event.text for event in train(recipe, tmp_path / "run") if isinstance(event, Notice)]
    assert any(line.startswith("constraint: ") and "states on the device" in line for line in lines)
    (tmp_path / "list.txt").unlink()
    run = load(tmp_path / "run", device="cpu")
    ((_, decoded),) = run.search(["a b a"], beam=4, n_best=4)
    texts = [run.task.text(run.task.item("a"), h.tokens) for h in decoded.hypotheses if h.finished]
    assert texts and all(re.fullmatch("(x )*(x|y( x z)?)", text) for text in texts)


@pytest.mark.parametrize(
    ("notation", "text", "outputs"),
    [
        ("regex", "x( y)?|y( x z)?", {"x", "x y", "y", "y x z"}),
        ("gbnf", 'root ::= ("x" " y"?) | ("y" (" x z")?)', {"x", "x y", "y", "y x z"}),
        ("lark", 'start: start "z" | "x" "y"? | "y" "x"?', {"x", "x y", "y", "y x z", "x z z"}),
    ],
)
def test_every_notation_makes_a_constraint(tmp_path: Path, notation: str, text: str, outputs: set[str]) -> None:
    """The last one starts with itself: xgrammar's matchers take it."""
    recipe = recipe_of(tmp_path, text + "\n", "task.constraint.kind=grammar", f"task.constraint.notation={notation}")
    task = Translation.fit(recipe)
    assert len(task.read("train").items) == 4
    assert task.valid.constraint is not None
    for output in outputs_of(task, *outputs):
        assert task.valid.constraint.accepts(output)
    for output in outputs_of(task, "z", "x x", "z y"):
        assert not task.valid.constraint.accepts(output)
    host = "on the host, and slow, because"
    assert (constraint_facts(task).get(host) == "rule start starts with itself") == (notation == "lark")


@pytest.mark.parametrize(
    ("notation", "text", "message"),
    [
        ("lark", 'start: "q"', ": no output is valid: the grammar derives nothing from the tokens of the vocabulary"),
        ("lark", " \n", ": an empty file; a grammar in the notation lark is expected"),
        ("regex", "x\ny\n", ":2: a second line; a regular expression is one line"),
        ("regex", "x[a-f", ": 'x[a-f' is no regular expression: unterminated character set at position 1"),
        ("regex", "x(?=y)", ": lookahead or lookbehind in 'x(?=y)'; characters, classes, groups, | and repeats"),
        ("gbnf", "root ::= other", ': not a grammar in GBNF: EBNF parser error at line 1, column 10: Rule "other" is'),
        (
            "regex",
            "(" * 400 + "x" + ")" * 400,
            ": too many levels of groups or rules within one another; write fewer",
        ),
        ("json_schema", "[1]", ": not a JSON Schema that can be a grammar: Schema should be an object or bool"),
        ("json_schema", '{"a": ', ": not a JSON Schema that can be a grammar: Expecting value: line 1"),
    ],
)
def test_a_wrong_grammar_names_its_file(tmp_path: Path, notation: str, text: str, message: str) -> None:
    recipe = recipe_of(tmp_path, text, "task.constraint.kind=grammar", f"task.constraint.notation={notation}")
    assert refusal(lambda: Translation.fit(recipe)).startswith(f"{tmp_path / 'list.txt'}{message}")


def test_a_list_without_an_entry_that_could_be_an_output_names_its_file(tmp_path: Path) -> None:
    """Errors of the file itself name it once."""
    path = tmp_path / "list.txt"
    unknown = f"{path}: unknown tokens in all entries (2); one at least must be an output"
    assert refusal(lambda: Translation.fit(recipe_of(tmp_path, "q\nx q\n"))) == unknown
    targets = ('task.constraint.file=""', "task.constraint.training_targets=true", "text.min_count=100")
    assert refusal(lambda: Translation.fit(recipe_of(tmp_path, "", *targets))) == (
        "training targets: unknown tokens in all entries (4); one at least must be an output"
    )
    assert refusal(lambda: Translation.fit(recipe_of(tmp_path, "", *targets[:2], "text.min_length=50"))) == (
        "training targets: no entry; text.min_length and text.max_length admit none; one at least must be an output"
    )
    assert refusal(lambda: Translation.fit(recipe_of(tmp_path, "x\n\n"))).startswith(f"{path}:2: an empty line")
    assert refusal(lambda: Translation.fit(recipe_of(tmp_path, ""))).startswith(f"{path}: an empty file")


def test_a_run_may_start_from_one_without_its_constraint(tmp_path: Path) -> None:
    """Vocabulary and weights are those of the first run, the constraint is the second recipe's own."""
    recipe = recipe_of(tmp_path, "x y\ny\nx\ny x z\n", f"start={tmp_path / 'first'}")
    free = recipe.model_copy(update={"task": TranslationTask(), "start": ""})
    for _ in train(free, tmp_path / "first"):
        pass
    lines = [event.text for event in train(recipe, tmp_path / "second") if isinstance(event, Notice)]
    assert "constraint: 4 entries, 0 entries with unknown tokens left out" in lines
    ((_, decoded),) = load(tmp_path / "second", device="cpu").search(["a b a"], beam=4, n_best=4)
    assert len([h for h in decoded.hypotheses if h.finished]) == 4
