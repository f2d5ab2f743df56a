"""Treebank files, parsed: the search's trees in two columns, and everything else as it was written."""

import gzip
import json
import lzma
import os
import select
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest

from argbeam.cli import decode_treebank as tree_decoding
from argbeam.cli.decode_lines import Counts
from argbeam.cli.decode_treebank import parse_file, parse_stream
from argbeam.data.readers.conll import Flavour, Tree, read_conll
from argbeam.metrics.attachment import AttachmentCounts, attachment_counts
from argbeam.runs.load import Run, load, open_run
from argbeam.runtime.group import joined
from generated_files import write_files
from groups import in_group
from refusals import refusal
from small_runs import PRETRAIN, file_data, finish, small_recipe

BEAM = 2
Kept = tuple[Run, Path]


@pytest.fixture(scope="module", params=["conllu", "conllx"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A parser trained on files of either flavour, and the folder of the files."""
    folder = tmp_path_factory.mktemp(request.param)
    write_files(folder, seed=3, train=12, dev=3, test=5, types=200)
    data = file_data(request.param, folder)
    recipe = small_recipe("task.punctuation=none", task="parsing", data=data, stages={"pretrain": PRETRAIN})
    finish(recipe, folder / "run")
    return load(folder / "run", device="cpu"), folder


def parsed(run: Run, text: str, folder: Path) -> tuple[str, Counts]:
    (folder / "in").write_text(text, encoding="utf-8")
    with (folder / "in").open("rb") as source, (folder / "out").open("w", encoding="utf-8") as out:
        counts = parse_stream(run, source, "in", out, beam=BEAM)
    return (folder / "out").read_text(encoding="utf-8"), counts


def flavour_of(run: Run) -> Flavour:
    return Flavour(run.recipe.data.kind)


def trees_of(text: str, run: Run, folder: Path) -> list[Tree]:
    (folder / "parsed").write_text(text, encoding="utf-8")
    return list(read_conll([folder / "parsed"], flavour=flavour_of(run)))


def test_trees_read_back_have_the_score_of_evaluate_and_the_arcs_of_decode(kept: Kept, tmp_path: Path) -> None:
    run, folder = kept
    source = folder / f"test.{run.recipe.data.kind}"
    gold = list(read_conll([source], flavour=flavour_of(run)))
    text, counts = parsed(run, source.read_text(encoding="utf-8"), tmp_path)
    trees = trees_of(text, run, tmp_path)
    assert counts == Counts(5, unit="sentence") and [tree.words for tree in trees] == [tree.words for tree in gold]
    pairs = [
        attachment_counts(a.heads, a.labels, b.heads, b.labels, is_punctuation=[False] * len(a.heads))
        for a, b in zip(trees, gold, strict=True)
    ]
    score = run.evaluate("test", beam=BEAM).score
    total = sum(pairs, AttachmentCounts())
    assert dict(score.parts) == {"uas": total.uas, "las": total.las}
    lines = run.decode([" ".join(tree.words) for tree in gold], beam=BEAM)
    for line, tree in zip(lines, trees, strict=True):
        rows = zip(tree.words, tree.heads, tree.labels, strict=True)
        assert line == " ".join(f"{word}/{head}/{label}" for word, head, label in rows)


def test_only_the_parse_is_written_anew(kept: Kept, tmp_path: Path) -> None:
    """Heads and labels may be missing; comments, nodes that are no words and columns that say nothing of heads stay."""
    run, _ = kept
    conllu = flavour_of(run) is Flavour.CONLLU
    rows = [
        f"1\tira\tIra\tNOUN\tNN\tCase=Nom\t_\t_\t2:nsubj\t{'SpaceAfter=No' if conllu else 'z'}",
        "2\t10 000\t_\tVERB\tVB\t_\t9\tx\t0:root\ty",
        f"3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t{'_' if conllu else 2}\tx",  # PHEAD and PDEPREL in CoNLL-X
    ]
    first = ["# text = ira 10 000." if conllu else "# ira 10 000.", "# one", rows[0], rows[1], rows[2], ""]
    if conllu:
        first[2:2] = ["1-2\tira10\t_\t_\t_\t_\t_\t_\t_\tx=y"]
        first[4:4] = ["1.1\tela\t_\tVERB\t_\t_\t_\t_\t0:root\t_"]
    second = ["", "# a comment", rows[0], ""]
    text, counts = parsed(run, "\n".join([*first, *second]), tmp_path)  # without a last line end
    assert counts.lines == 2
    before, after = [*first, *second], text.removesuffix("\n").split("\n")
    assert len(before) == len(after)
    parse = {place for place, line in enumerate(before) if line.split("\t")[0] in ("1", "2", "3")}
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if place not in parse:
            assert new == old
            continue
        left, right = old.split("\t"), new.split("\t")
        assert right[:6] == left[:6] and right[6].isdigit() and right[7] not in ("_", "x")
        assert right[8:] == ["_", "_" if left[8] == "2" else left[9]]
    assert [tree.words for tree in trees_of(text, run, tmp_path)] == [("ira", "10_000", "."), ("ira",)]


def test_columns_that_are_not_there_are_not_made(kept: Kept, tmp_path: Path) -> None:
    run, _ = kept
    short = "1\tira\t_\t_\t_\t_\t_\t_"
    if flavour_of(run) is Flavour.CONLLU:
        assert refusal(parsed, run, short + "\n", tmp_path) == "in:1: 8 tab-separated columns; a conllu line has 10"
        return
    text, _ = parsed(run, short + "\n\n", tmp_path)
    (tree,) = trees_of(text, run, tmp_path)
    assert text == f"1\tira\t_\t_\t_\t_\t0\t{tree.labels[0]}\n\n"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("2\tela" + "\t_" * 8, "in:4: id '2' after 0 words; ids count from 1 without gaps"),
        ("1\t \t_" + "\t_" * 7, "in:4: the form is empty; `_` stands for none"),
        ("ira ela", "in:4: 1 tab-separated column"),
        ("1\tela\0" + "\t_" * 8, "in:4: NUL at byte 6 of the line"),
        ("\n".join(f"{i}\tela" + "\t_" * 8 for i in range(1, 2002)), "in:2004: a sentence of more than 2000 words ("),
    ],
)
def test_sentences_before_a_bad_one_are_parsed(kept: Kept, tmp_path: Path, bad: str, said: str) -> None:
    run, _ = kept
    good = "# first\n1\tira" + "\t_" * 8 + "\n\n"
    assert refusal(parsed, run, good + bad + "\n", tmp_path).startswith(said)
    written = (tmp_path / "out").read_text(encoding="utf-8")
    assert written == parsed(run, good, tmp_path)[0]


@pytest.mark.parametrize("text", ["", "\n\n", "# only this\n", "# this\n\n# and that\n\n \n"])
def test_lines_without_a_sentence_are_written_as_they_are(kept: Kept, tmp_path: Path, text: str) -> None:
    assert parsed(kept[0], text, tmp_path) == (text, Counts(unit="sentence"))
    good = "1\tira" + "\t_" * 8 + "\n \n"  # spaces alone end a sentence, too
    tree, _ = parsed(kept[0], good, tmp_path)
    found = parsed(kept[0], text + "\n" + good + text, tmp_path)
    assert found == (text + "\n" + tree + text, Counts(1, unit="sentence"))


def test_a_pipe_is_answered_when_a_sentence_ends(kept: Kept) -> None:
    """However it is cut into pieces; the next one is sent when the tree of the one before has come."""
    run, _ = kept
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()
    row = b"1\tira" + b"\t_" * 8 + b"\n", b"2\tela" + b"\t_" * 8 + b"\n"
    with os.fdopen(asked, "rb") as source, os.fdopen(answered, "w") as out, ThreadPoolExecutor(1) as threads:
        done = threads.submit(parse_stream, run, source, "stdin", out, beam=BEAM)
        try:
            for _ in range(2):
                for piece in (b"# a comment\n", row[0], row[1] + b"\n"):
                    os.write(ask, piece)
                    waits = 0.3 if piece == row[0] else 60  # nothing comes before the sentence has ended
                    assert bool(select.select([answer], [], [], waits)[0]) == (piece != row[0])
                    if piece != row[0]:
                        assert os.read(answer, 999).startswith(b"# a" if piece[:1] == b"#" else b"1\tira\t")
            os.write(ask, row[1])
        finally:
            os.close(ask)
        assert "stdin:9: id '2' after 0 words" in refusal(done.result)
    os.close(answer)


def test_a_sentence_that_ends_in_no_words_is_not_waited_for_without_end(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_decoding, "_MOST_LINES", 7)
    good = "1\tira" + "\t_" * 8 + "\n"
    assert parsed(kept[0], "# x\n" * 50, tmp_path)[0] == "# x\n" * 50
    said = refusal(parsed, kept[0], good + "# x\n" * 50, tmp_path)
    assert said == "in:8: a sentence of more than 2000 words (decode.max_words) or 7 lines"


def test_a_dead_end_is_a_tree_and_is_told(tmp_path: Path) -> None:
    """Trained on sentences of one word, the parser has no action to join two with."""
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conllu").write_text("1\tira\t_\tX\t_\t_\t0\troot\t_\t_\n\n" * 4, encoding="utf-8")
    data = {"kind": "conllu", "root": str(tmp_path), "train": ["train.conllu"], "dev": ["dev.conllu"]}
    recipe = small_recipe("text.min_length=1", task="parsing", data=data, stages={"pretrain": PRETRAIN})
    finish(recipe, tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    text, counts = parsed(run, "".join(f"{i}\tira" + "\t_" * 8 + "\n" for i in (1, 2)) + "\n", tmp_path)
    assert [line.split("\t")[6:8] for line in text.splitlines()] == [["0", "root"], ["1", "dep"], []]
    assert list(counts.notices()) == ["of 1 sentence 0 unfinished (the length limit was met) and 1 at a dead end"]


@pytest.mark.parametrize("name", ["in.xz", "in.gz"])
def test_files_may_be_compressed_with_other_line_ends_or_damaged(kept: Kept, tmp_path: Path, name: str) -> None:
    run, folder = kept
    plain = (folder / f"test.{run.recipe.data.kind}").read_bytes()
    expected, _ = parsed(run, plain.decode(), tmp_path)
    pack = lzma.compress if name.endswith("xz") else gzip.compress
    packed = pack(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    (tmp_path / name).write_bytes(packed)
    parse_file(run, str(tmp_path / name), str(tmp_path / "out"), beam=BEAM)
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
    (tmp_path / name).write_bytes(packed[:-8])  # all the text is there, and not the end of the file
    assert "damaged or not a whole" in refusal(parse_file, run, str(tmp_path / name), str(tmp_path / "out"), beam=BEAM)
    written = (tmp_path / "out").read_text(encoding="utf-8")
    assert expected.startswith(written) and written.count("\n\n") >= 4


def parse_in_group(run: str, folder: str) -> None:
    """In every process of a group; only the first one has the file."""
    out = StringIO()
    with joined() as group:
        opened = open_run(Path(run), group=group)
        with (Path(folder) / "in" if group.leads else Path(os.devnull)).open("rb") as source:
            counts = parse_stream(opened, source, "in", out, beam=BEAM)
        found = json.dumps([out.getvalue(), counts.lines])
        (Path(folder) / f"found.{group.rank}").write_text(found, encoding="utf-8")


@pytest.mark.parametrize("kept", ["conllu"], indirect=True)
def test_several_processes_parse_as_one(kept: Kept, tmp_path: Path) -> None:
    run, folder = kept
    alone, _ = parsed(run, (folder / f"test.{run.recipe.data.kind}").read_text(encoding="utf-8"), tmp_path)
    in_group(2, tmp_path / "group", parse_in_group, str(folder / "run"), str(tmp_path))
    found = [json.loads((tmp_path / f"found.{rank}").read_text(encoding="utf-8")) for rank in range(2)]
    assert found == [[alone, 5]] * 2
