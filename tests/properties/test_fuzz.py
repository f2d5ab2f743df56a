"""Damaged input of every kind is read as it stands or refused by one clear line; nothing of it is lost in silence.

Each case is a function of its number, the seed that a failure's message names. What was accepted is compared with lines
split at newlines.
"""

import gzip
import json
import lzma
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from argbeam.cli import app as cli
from argbeam.cli.decode_lines import DecodeRequest, decode_stream
from argbeam.data.batches import make_batch
from argbeam.data.readers.conll import Flavour, read_conll, tree_fault
from argbeam.data.readers.text import TextPair, read_parallel, read_text, read_tsv
from argbeam.data.readers.vectors import read_vectors
from argbeam.errors import ArgbeamError
from argbeam.reports.report import read_runs, write_report
from argbeam.runs import checkpoint
from argbeam.runs.load import Run, load, open_run
from argbeam.runs.score import score_run
from argbeam.search.successors import check_gold
from argbeam.settings.recipe_files import load_recipe, parse_recipe, recipe_from_json, recipe_to_json, shipped_recipes
from argbeam.tasks import TASKS
from generated_files import FORMATS, generate
from mutations import damaged
from small_runs import PRETRAIN, RATES, file_data, finish, short_text, small_recipe

# ARGBEAM_FUZZ=20 draws twenty times as many cases.
MANY = int(os.environ.get("ARGBEAM_FUZZ", "1"))
# Cases of each kind; together at least ten thousand.
CASES = {
    "text": 1200,
    "tsv": 1000,
    "parallel": 800,
    "packed": 400,
    "conllu": 900,
    "conllx": 700,
    "vectors": 1000,
    "binary vectors": 800,
    "recipes": 900,
    "overrides": 700,
    "checkpoints": 500,
    "forged checkpoints": 300,
    "records": 300,
    "tasks": 450,
    "decode": 250,
    "command": 60,
}
SENTENCES = generate(seed=3, size=3, types=200)
FILES = {ending: text(SENTENCES).encode() for ending, text in FORMATS.items()}
FILES["txt"] += "Ünï e\u0301 漢字 a\u00a0b 1,984\n".encode()
FILES["conllu"] += (
    b"# text = It's 10 000\n1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n1\tIt\t_\tPRON\tPRP\t_\t3\tnsubj\t_\t_\n"
    b"2\t's\t_\tAUX\tVBZ\t_\t3\tcop\t_\t_\n2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n3\t10 000\t_\tNUM\tCD\t_\t0\troot\t_\t_\n\n"
)
NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")


def test_at_least_ten_thousand_cases_are_drawn() -> None:
    assert sum(CASES.values()) >= 10_000


def cases(kind: str) -> Iterator[tuple[int, Random]]:
    return ((number, Random(f"{kind}:{number}")) for number in range(MANY * CASES[kind]))


@contextmanager
def refused(kind: str, number: int, *begins: str) -> Iterator[list[str]]:
    """Lets a refusal pass that is one printable line and starts with one of the names given; no other error does."""
    said: list[str] = []
    try:
        yield said
    except ArgbeamError as error:
        said.append(str(error))
        assert said[0].isprintable() and 10 < len(said[0]) < 4000, f"{kind} {number}: {said[0][:2000]}"
        assert not begins or said[0].startswith(begins), f"{kind} {number}: {said[0]}"
    except Exception as error:
        raise AssertionError(f"{kind} {number}: {type(error).__name__}") from error


def plain_lines(data: bytes) -> list[str]:
    """The lines of a file by the plainest means: newlines end them, carriage returns before those belong to them."""
    text = data.decode().removeprefix("\ufeff")
    lines = text.removesuffix("\n").split("\n") if data else []
    return [line.removesuffix("\r") for line in lines]


def read_or_refused(kind: str, path: Path, base: bytes | list[bytes], check: Callable[[bytes], None]) -> None:
    """Damage a file in every case of a kind: `check` holds, or reading is refused with the file's name."""
    accepted = 0
    for number, draw in cases(kind):
        data = damaged(base if isinstance(base, bytes) else draw.choice(base), draw)
        path.write_bytes(data)
        with refused(kind, number, f"{path}:") as said:
            check(data)
        accepted += not said
    assert_some_accepted(accepted, kind)


def assert_some_accepted(accepted: int, kind: str) -> None:
    """Neither nearly all nor nearly none: the damage is of the right size."""
    drawn = MANY * CASES[kind]
    assert drawn // 50 < accepted < drawn * 49 // 50, f"{kind}: {accepted} accepted of {drawn}"


@pytest.mark.parametrize(
    ("kind", "ending", "read", "expected"),
    [
        ("text", "txt", read_text, lambda line: line),
        ("tsv", "tsv", read_tsv, lambda line: TextPair(*line.split("\t")[:2])),
    ],
)
def test_damaged_text_and_columns_are_read_line_by_line_or_refused(
    tmp_path: Path, kind: str, ending: str, read: Callable[..., Any], expected: Callable[[str], Any]
) -> None:
    path = tmp_path / f"t.{ending}"

    def check(data: bytes) -> None:
        assert list(read([path])) == [expected(line) for line in plain_lines(data)]

    read_or_refused(kind, path, FILES[ending], check)


def test_damaged_parallel_files_are_read_in_step_or_refused(tmp_path: Path) -> None:
    source, target, accepted = tmp_path / "t.src", tmp_path / "t.tgt", 0
    for number, draw in cases("parallel"):
        sides, side = [FILES["src"], FILES["tgt"]], draw.randrange(2)
        sides[side] = damaged(sides[side], draw)
        for path, data in zip((source, target), sides, strict=True):
            path.write_bytes(data)
        with refused("parallel", number, f"{source}:", f"{target}:") as said:
            pairs = [(pair.source, pair.target) for pair in read_parallel([source], [target])]
            assert pairs == list(zip(*map(plain_lines, sides), strict=True))
        accepted += not said
    assert_some_accepted(accepted, "parallel")


def test_damaged_compressed_files_are_refused_or_whole(tmp_path: Path) -> None:
    """Both formats carry check sums: what is read is what was packed."""
    for number, draw in cases("packed"):
        name, pack = draw.choice((("t.gz", lambda data: gzip.compress(data, mtime=0)), ("t.xz", lzma.compress)))
        path = tmp_path / name
        path.write_bytes(damaged(pack(FILES["txt"]), draw))
        with refused("packed", number, f"{path}:"):
            assert list(read_text([path])) == plain_lines(FILES["txt"])


@pytest.mark.parametrize("flavour", list(Flavour))
def test_every_tree_of_a_damaged_treebank_is_read_or_the_file_refused(tmp_path: Path, flavour: Flavour) -> None:
    """Sentences are what stands between lines of spaces; words are lines that are no comment and no `1-2` or `1.1`."""
    path = tmp_path / f"t.{flavour.value}"

    def check(data: bytes) -> None:
        trees = list(read_conll([path], flavour=flavour))
        rows = [line for line in plain_lines(data) if not line.startswith("#")]
        blocks = re.split(r"\n *(?:\n *)*\n", "\n" + "\n".join(rows) + "\n")
        words = [[line.split("\t") for line in block.split("\n") if line.strip(" ")] for block in blocks]
        words = [[row for row in block if not NOT_A_WORD.fullmatch(row[0])] for block in words]
        for tree, block in zip(trees, filter(None, words), strict=True):
            assert tree_fault(tree.heads) is None
            assert tree.words == tuple("_".join(row[1].split()) for row in block)
            assert tree.heads == tuple(int(row[6]) for row in block)
            assert tree.labels == tuple(row[7].strip() for row in block)

    read_or_refused(flavour.value, path, FILES[flavour.value], check)


VECTORS = {"ba": [0.5, -1.0], "Ü": [2.0, 3.5], "e\u0301": [0.001, 7.0]}


def test_damaged_vectors_are_read_as_they_stand_or_refused(tmp_path: Path) -> None:
    """Of the lines after the first, those of words asked for are what is found, the first of each."""
    path = tmp_path / "v.vec"

    def check(data: bytes) -> None:
        vectors = read_vectors(path, words=VECTORS, size=2)
        lines = [line.split(" ") for line in plain_lines(data)[1:]]
        expected = {line[0]: [float(x) for x in line[1:3]] for line in reversed(lines) if line[0] in VECTORS}
        assert set(vectors.rows) == set(expected)
        for word, row in vectors.rows.items():
            assert vectors.vectors_FD[row].tolist() == torch.tensor(expected[word]).tolist()

    rows = "".join(f"{word} {a} {b}\n" for word, (a, b) in VECTORS.items())
    read_or_refused("vectors", path, f"3 2\n{rows}".encode(), check)


def test_damaged_binary_vectors_are_finite_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    rows = b"".join(word.encode() + b" " + torch.tensor(v).numpy().tobytes() + b"\n" for word, v in VECTORS.items())
    for number, draw in cases("binary vectors"):
        path.write_bytes(damaged(b"3 2\n" + rows, draw))
        with refused("binary vectors", number, f"{path}:"):
            vectors = read_vectors(path, words=VECTORS, size=2)
            assert bool(vectors.vectors_FD.isfinite().all()) and vectors.found <= 3


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_every_key_of_a_damaged_recipe_is_in_force_or_the_recipe_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"

    def check(data: bytes) -> None:
        recipe = load_recipe(path)
        given = dict(leaves(tomllib.loads(data.decode("utf-8-sig"))))
        assert given.items() <= dict(leaves(recipe.model_dump())).items()
        assert recipe_from_json(recipe_to_json(recipe)) == recipe

    read_or_refused("recipes", path, [recipe.read_bytes() for recipe in shipped_recipes().values()], check)


def test_every_damaged_override_is_in_force_or_refused() -> None:
    base = small_recipe(stages={"only": PRETRAIN}).model_dump()
    lines = [f"{key}={json.dumps(value)}" for key, value in leaves(base)] + ["name=x", "data.root=a b"]
    accepted = 0
    for number, draw in cases("overrides"):
        override = damaged(draw.choice(lines).encode(), draw).decode("utf-8", "surrogateescape")
        with refused("overrides", number, "recipe: ", "--set") as said:
            recipe = parse_recipe(base, [override])
            key = ".".join(part.strip() for part in override.partition("=")[0].split("."))
            held = dict(leaves(recipe.model_dump()))
            assert key in held or any(name.startswith(f"{key}.") for name in held), f"overrides {number}: {override}"
        accepted += not said
    assert_some_accepted(accepted, "overrides")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a few updates, with scores."""
    folder = tmp_path_factory.mktemp("fuzz")
    stage = {"epochs": 1, "loss": {"kind": "cross_entropy"}, "optimizer": RATES}
    finish(small_recipe(data=short_text(folder), stages={"only": stage}), folder / "run")
    list(score_run(open_run(folder / "run"), "dev", [1, 2]))
    return folder / "run"


def test_a_checkpoint_with_any_damage_is_refused(run: Path, tmp_path: Path) -> None:
    (newest,) = (run / "model").iterdir()
    whole, path = newest.read_bytes(), tmp_path / newest.name
    for number, draw in cases("checkpoints"):
        data = damaged(whole, draw)
        path.write_bytes(data)
        with refused("checkpoints", number, f"{path}:") as said:
            checkpoint.load(path)
        assert bool(said) == (data != whole), f"checkpoints {number}"


def test_a_checkpoint_forged_with_a_true_digest_opens_or_is_refused(run: Path, tmp_path: Path) -> None:
    """Whoever knows the format can write any content with a digest that fits: no content ends in a traceback."""
    (newest,) = (run / "model").iterdir()
    found, accepted = checkpoint.load(newest), 0
    for number, draw in cases("forged checkpoints"):
        tensors, meta = dict(found.tensors), json.loads(json.dumps(found.meta))
        for _ in range(draw.choice((1, 1, 2))):
            _forge(tensors, meta, draw)
        path = checkpoint.save(tmp_path / f"{number}", 1, tensors, meta)
        with refused("forged checkpoints", number) as said:
            assert len(load(path, device="cpu").decode(["ba ko", "ti"], beam=2)) == 2
        accepted += not said
    assert_some_accepted(accepted, "forged checkpoints")


def _forge(tensors: dict[str, torch.Tensor], meta: dict[str, Any], draw: Random) -> None:
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    match draw.randrange(9):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor[:1].clone() if tensor.dim() else tensor
        case 2:
            tensors[name] = tensor.to(draw.choice((torch.float64, torch.int64, torch.uint8, torch.bool)))
        case 3:
            tensors[name] = torch.full_like(tensor, draw.choice((0, 1, 7)))
        case 4 if name.startswith("asset."):
            data = damaged(bytes(tensor.tolist()), draw)[:5000] or b"\0"
            tensors[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        case 5:
            del meta[draw.choice(sorted(meta))]
        case 6:
            meta[draw.choice(sorted(meta))] = draw.choice((None, 1, "", "x", [], {}, True, "{}", "[1]"))
        case 7:
            meta["recipe"] = damaged(str(meta.get("recipe", "")).encode(), draw).decode("utf-8", "replace")[:20_000]
        case _:
            tensors[f"model.{draw.randrange(99)}"] = torch.zeros(draw.randrange(3))


def test_damaged_records_are_reported_or_refused(run: Path, tmp_path: Path) -> None:
    files, reported = ("recipe.json", "records.jsonl", "evaluations.jsonl"), 0
    for number, draw in cases("records"):
        name = draw.choice(files)
        for other in files:
            data = (run / other).read_bytes()
            (tmp_path / other).write_bytes(damaged(data, draw) if other == name else data)
        with refused("records", number):
            read_runs([tmp_path])
            if number % 10 == 0:  # pictures take their time
                write_report([tmp_path], tmp_path / "report")
            reported += 1
    assert_some_accepted(reported, "records")


@pytest.mark.parametrize("task", ["word_ordering", "parsing", "translation"])
def test_what_a_task_accepts_of_damaged_files_can_be_trained_on(task: str, tmp_path: Path) -> None:
    """Every sentence is an example or counted as left out, and gold sequences are valid under the constraint."""
    kinds = {"word_ordering": ("text", "conllu"), "parsing": ("conllu", "conllx"), "translation": ("tsv", "parallel")}
    for ending, data in FILES.items():
        for split in ("train", "dev", "test"):
            (tmp_path / f"{split}.{ending}").write_bytes(data)
    accepted, endings = 0, {"text": "txt", "parallel": "tgt"}
    for number, draw in islice(cases("tasks"), MANY * CASES["tasks"] // 3):
        kind = draw.choice(kinds[task])
        ending = endings.get(kind, kind)
        path = tmp_path / f"train.{ending}"
        path.write_bytes(damaged(FILES[ending], draw))
        recipe = small_recipe(task=task, data=file_data(kind, tmp_path))
        with refused("tasks", number) as said:
            fitted = TASKS[task].fit(recipe)
            train = fitted.read("train")
            assert len(train.items) + sum(train.left_out.values()) == _sentences(kind, path)
            batch = make_batch([fitted.example(item, i) for i, item in enumerate(train.items)])
            check_gold(fitted.constraint, batch)
            assert int(batch.target_BT.max()) < len(fitted.target)
        accepted += not said
        path.write_bytes(FILES[ending])
    assert 10 < accepted < MANY * CASES["tasks"] // 3 - 10


def _sentences(kind: str, path: Path) -> int:
    if kind in ("conllu", "conllx"):
        return len(list(read_conll([path], flavour=Flavour(kind))))
    return len(plain_lines(path.read_bytes()))


@pytest.fixture(scope="module")
def opened(run: Path) -> Run:
    return load(run, device="cpu")


def test_every_line_of_a_damaged_input_is_decoded_up_to_the_one_refused(opened: Run, tmp_path: Path) -> None:
    """Word ordering's outputs are permutations of their inputs, so that each shows whose it is."""
    path, target, accepted = tmp_path / "in", tmp_path / "out", 0
    for number, draw in cases("decode"):
        data = damaged("ba ko ti\nlu ba\n\u00fc e\u0301 ba\n".encode(), draw)
        path.write_bytes(data)
        with (
            path.open("rb") as source,
            target.open("w", encoding="utf-8", newline="\n") as out,
            refused("decode", number, "in:") as said,
        ):
            decode_stream(opened, source, "in", out, DecodeRequest(beam=2))
        written = target.read_bytes().decode().split("\n")[:-1]
        if said:
            bad = int(said[0].split(":")[1])
            assert len(written) == bad - 1, f"decode {number}: {said[0]}"
            data = b"".join(line + b"\n" for line in data.split(b"\n")[: bad - 1])
        assert [sorted(line.split()) for line in written] == [sorted(line.split()) for line in plain_lines(data)]
        accepted += not said
    assert_some_accepted(accepted, "decode")


def test_the_command_answers_damage_with_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, codes = tmp_path / "r.toml", set()
    for number, draw in cases("command"):
        (tmp_path / "train.conllu").write_bytes(damaged(FILES["conllu"], draw))
        (tmp_path / "dev.conllu").write_bytes(FILES["conllu"])
        recipe.write_bytes(_COMMAND_RECIPE if draw.randrange(2) else damaged(_COMMAND_RECIPE, draw))
        override = "decode.beam=2" if draw.randrange(2) else damaged(b"decode.beam=2", draw).decode("latin-1")
        arguments = ["train", recipe, "--out", tmp_path / f"{number}", "--data", tmp_path, "--set", override]
        monkeypatch.setattr(sys, "argv", ["argbeam", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        err = capfd.readouterr().err
        codes.add(left.value.code)
        assert left.value.code in (0, None, 2), f"command {number}: {left.value.code}"
        if left.value.code == 2:
            assert len(err.splitlines()) == 1 and err.startswith("argbeam: error: "), f"command {number}: {err[-2000:]}"
    assert 2 in codes and len(codes) > 1


_COMMAND_RECIPE = b"""name = "fuzz"
task = { kind = "parsing" }
data = { kind = "conllu", train = ["train.conllu"], dev = ["dev.conllu"] }
model = { hidden = 4, embedding = 4 }
runtime = { device = "cpu" }
[stages.only]
epochs = 1
loss = { kind = "cross_entropy" }
optimizer = { encoder = 0.05, decoder = 0.05, output = 0.2 }
keep = "perplexity"
"""
