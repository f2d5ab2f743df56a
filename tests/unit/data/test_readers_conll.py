"""Treebanks: the conllu package reads the same trees, and every malformed tree is named by its line."""

import tempfile
from pathlib import Path

import conllu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argbeam.data.readers.conll import Flavour, Tree, read_conll
from refusals import refusal

SENTENCE = """# text = They've left
1-2\tThey've\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2\t've\thave\tAUX\tVBP\t_\t3\taux\t_\t_
2.1\tgone\t_\tVERB\t_\t_\t_\t_\t_\t_
3\tleft\tleave\tVERB\tVBN\t_\t0\troot\t_\t_
"""


def read(text: str | bytes, flavour: Flavour = Flavour.CONLLU) -> list[Tree]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.conllu")
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return list(read_conll([path], flavour=flavour))


def rows(*heads: str | int) -> str:
    return "".join(f"{i}\tw{i}\t_\tX\tY\t_\t{head}\tdep\t_\t_\n" for i, head in enumerate(heads, start=1))


def test_a_sentence_is_read_without_comments_multiword_and_empty_nodes() -> None:
    expected = Tree(("They", "'ve", "left"), ("PRON", "AUX", "VERB"), (3, 3, 0), ("nsubj", "aux", "root"))
    assert read(SENTENCE) == [expected]  # no empty line at the end


def test_conllx_takes_its_tags_from_column_5_and_may_end_at_column_8(tmp_path: Path) -> None:
    path = tmp_path / "t.conllx"
    path.write_text(
        "1\tIt\t_\tP\tPRP\t_\t2\tSBJ\n2\twas\t_\tV\tVBD\t_\t0\tROOT\t_\t_\n\n\n\n1\tNo\t_\tU\tUH\t_\t0\tROOT\n"
    )
    trees = list(read_conll([path, path], flavour=Flavour.CONLLX))
    assert [tree.tags for tree in trees] == [("PRP", "VBD"), ("UH",)] * 2


@st.composite
def treebanks(draw: st.DrawFn) -> str:
    """Random trees: in a random order of the words, each hangs from an earlier one."""
    field = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1)
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(1, draw(st.integers(1, 6)) + 1)))
        heads = {order[0]: 0} | {word: draw(st.sampled_from(order[:i])) for i, word in enumerate(order) if i}
        lines.append("# a comment\t1")
        for word in sorted(heads):
            if draw(st.booleans()):
                lines.append(f"{word}-{word + 1}\tdon't\t_\t_\t_\t_\t_\t_\t_\t_")
            lines.append(f"{word}\t{draw(field)}\t_\t{draw(field)}\t_\t_\t{heads[word]}\t{draw(field)}\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


@given(treebanks())
def test_the_conllu_package_reads_the_same_trees(text: str) -> None:
    theirs = [[token for token in sentence if isinstance(token["id"], int)] for sentence in conllu.parse(text)]
    for ours, tokens in zip(read(text), theirs, strict=True):
        assert ours.words == tuple(token["form"] for token in tokens)
        assert ours.tags == tuple(token["upos"] for token in tokens)
        assert ours.heads == tuple(token["head"] for token in tokens)
        assert ours.labels == tuple(token["deprel"] for token in tokens)


def test_white_space_inside_a_form_becomes_an_underscore() -> None:
    assert read("1\t10 000\u00a0000\t_\tNUM\t_\t_\t0\troot\t_\t_\n")[0].words == ("10_000_000",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rows(2, 0, 9, 2, 2, 2, 2), "3: head 9 in a sentence of 7 words; heads run from 0 (root) to 7"),
        (rows(0, 1, 0), "3: a second root (words 1 and 3); one word has head 0"),
        ("\n" + rows(2, 3, 1), "2: no root in this sentence; one word has head 0"),
        (rows(0, 4, 2, 3), "2: the heads run in a circle (2 -> 4 -> 3 -> 2); they must form a tree"),
        (rows(0, 2), "2: the heads run in a circle (2 -> 2); they must form a tree"),
        (rows(0) + "2\ta\t_\tX\n", "2: 4 tab-separated columns; a conllu line has 10"),
        ("1 a _ X _ _ 0 root _ _\n", "1: 1 tab-separated column; a conllu line has 10"),
        (rows(0) + rows(0), "2: id '1' after 1 word; ids count from 1 without gaps, and an empty line ends"),
        (rows(0).replace("1", "x", 1), "1: id 'x' after 0 words; ids count from 1"),
        (rows("_"), "1: head '_' is not a number; heads run from 0 (root) to the last word's id"),
        (rows("\u0661"), "1: head '\u0661' is not a number"),
        (rows(0).replace("w1", ""), "1: the form is empty; `_` stands for none"),
        (rows(0).replace("X", " "), "1: the tag is empty; `_` stands for none"),
        (rows(0).replace("dep", ""), "1: the label is empty; `_` stands for none"),
        (rows(0).replace("dep", "a b"), "1: label 'a b' holds white space; a label is one word"),
        ("# only a comment\n", " no sentence in the file; at least one is expected"),
        ("", " no sentence in the file; at least one is expected"),
    ],
)
def test_a_malformed_tree_is_named_by_its_line(text: str, message: str) -> None:
    assert f"t.conllu:{message}" in refusal(read, text)


def test_a_conllx_line_has_8_to_10_columns_and_no_multiword_nodes() -> None:
    short = refusal(read, "1\ta\t_\tX\tY\t_\t0\n", Flavour.CONLLX)
    assert ":1: 7 tab-separated columns; a conllx line has 8 to 10" in short
    without_comment = SENTENCE.partition("\n")[2]
    assert ":1: id '1-2' after 0 words" in refusal(read, without_comment, Flavour.CONLLX)


def row(columns: str) -> str:
    """A word with columns 4, 5, 9 and 10."""
    coarse, fine, deps, misc = columns.split()
    return f"1\tira\t_\t{coarse}\t{fine}\t_\t0\troot\t{deps}\t{misc}\n"


@pytest.mark.parametrize(
    ("text", "flavour", "said"),
    [
        (
            "# sent_id = 1\n" + row("NOUN NN _ _"),
            "conllx",
            ":1: a comment `# sent_id =`; that is CoNLL-U",
        ),
        ("# newdoc\n" + row("NOUN NN _ _"), "conllx", ":1: a comment `# newdoc`; that is CoNLL-U"),
        (row("NOUN NN 0:root _"), "conllx", ":1: column 9 is '0:root' (DEPS); that is CoNLL-U"),
        (
            row("NOUN NN _ SpaceAfter=No"),
            "conllx",
            ":1: SpaceAfter=No in column 10 (MISC); that is CoNLL-U",
        ),
        (row("NOUN NN 0 root"), "conllu", ":1: column 9 is '0' (PHEAD); that is CoNLL-X"),
        (
            row("NN NN _ _"),
            "conllu",
            ": no tag in column 4 is a UPOS tag (one is NN), and column 5 has",
        ),
    ],
)
def test_a_file_of_the_other_flavour_is_refused(text: str, flavour: str, said: str) -> None:
    """Its tags, and so the punctuation that scores leave out, would be read from the wrong column."""
    other = {"conllx": "conllu", "conllu": "conllx"}[flavour]
    found = refusal(read, text, Flavour(flavour))
    assert said in found and found.endswith(f'data.kind = "{other}" reads it')
    assert len(read(text, Flavour(other))) == 1


def test_conllu_is_not_taken_for_conllx() -> None:
    """Universal Dependencies may leave column 5 empty: read as CoNLL-X, no word would have a tag."""
    text = rows(2, 0, 2).replace("Y", "_")
    assert refusal(read, text, Flavour.CONLLX).endswith(
        "t.conllu: every tag (column 5) is `_`, and column 4 has tags; that is CoNLL-U's way: "
        'data.kind = "conllu" reads it'
    )
    assert read(text)[0].tags == ("X", "X", "X")
    assert read(text.replace("X", "_"), Flavour.CONLLX)[0].tags == ("_", "_", "_")  # no tags anywhere: as it stands
    assert read(text.replace("_", "Y", 2), Flavour.CONLLX)[0].tags == ("Y", "_", "_")  # one of lemma and tag each


def test_a_treebank_that_is_not_utf8_or_not_given_is_an_error() -> None:
    assert "t.conllu:1: not UTF-8 at byte 3" in refusal(read, rows(0).replace("w1", "ü").encode("latin-1"))
    none = refusal(read_conll, [], flavour=Flavour.CONLLU)
    assert none == "no treebank was given; at least one file is needed"
