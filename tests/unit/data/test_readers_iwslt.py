"""IWSLT 2014's own formats, in small files of our making."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from argbeam.data.readers.iwslt import iwslt_folder, missing_files, read_sets, read_talks
from iwslt_files import ENGLISH, SETS, write_iwslt, xml
from refusals import refusal


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_talks_lose_their_tags_and_keep_their_titles(tmp_path: Path, ending: str, pack: Callable) -> None:
    """Lines about a talk go, on either side by itself; an empty sentence stays for cleaning to judge."""
    pairs = read_talks(write_iwslt(tmp_path, ending=ending, pack=pack))
    german = ["Ein Fisch", "Ein Vortrag: Fische & mehr.", "Das ist ein Fisch.", "", "Er schwimmt < 3 km."]
    english = ["A fish", "A talk: fish & more.", "This is a fish.", "Nothing.", "It swims < 3 km."]
    assert [(pair.source, pair.target) for pair in pairs] == list(zip(german, english, strict=True))


def test_the_five_sets_follow_each_other_and_that_of_2012_may_be_named_like_the_others(tmp_path: Path) -> None:
    write_iwslt(tmp_path)
    expected = [(f"Satz aus {part}.", f"Sentence of {part}.") for part in SETS]
    assert [(pair.source, pair.target) for pair in read_sets(tmp_path)] == expected
    for path in tmp_path.glob("IWSLT14.TEDX.dev2012.*"):
        path.rename(tmp_path / path.name.replace("TEDX", "TED"))
    assert [(pair.source, pair.target) for pair in read_sets(tmp_path)] == expected
    assert missing_files(tmp_path) == []


def test_entities_of_the_xml_are_characters(tmp_path: Path) -> None:
    write_iwslt(tmp_path)
    (tmp_path / "IWSLT14.TED.tst2011.de-en.en.xml").write_text(xml("R&amp;D &lt; &quot;fun&quot;"), encoding="utf-8")
    assert read_sets(tmp_path)[3].target == 'R&D < "fun"'


@pytest.mark.parametrize("below", [".", "de-en", "iwslt14", "iwslt14/de-en"])
def test_the_folder_is_found_under_its_usual_names(tmp_path: Path, below: str) -> None:
    assert iwslt_folder(tmp_path) is None
    assert len(missing_files(tmp_path)) == 2 + 2 * 5
    write_iwslt(tmp_path / below)
    assert iwslt_folder(tmp_path) == tmp_path / below


def test_sides_of_unequal_length_are_an_error(tmp_path: Path) -> None:
    write_iwslt(tmp_path, english=ENGLISH + "One more.\n")
    assert refusal(read_talks, tmp_path) == (
        f"{tmp_path}/train.tags.de-en.de: 5 sentences, but {tmp_path}/train.tags.de-en.en has 6; "
        "each translates one of the other"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (xml("Sentence.", first=2), "6: segment 2 stands where {source}:6 has 1"),
        ('<doc>\n<seg id="1"> torn', '2: not a segment; <seg id="1"> text </seg> is expected, one a line'),
        ('<doc>\n<seg id="1">  </seg>', "2: segment 1 is empty; at least one word is expected"),
    ],
)
def test_bad_segments_are_errors_at_their_line(tmp_path: Path, text: str, message: str) -> None:
    write_iwslt(tmp_path)
    source, target = (tmp_path / f"IWSLT14.TED.tst2010.de-en.{side}.xml" for side in ("de", "en"))
    target.write_text(text, encoding="utf-8")
    assert refusal(read_sets, tmp_path) == f"{target}:{message.format(source=source)}"


def test_a_missing_set_is_an_error(tmp_path: Path) -> None:
    path = write_iwslt(tmp_path) / "IWSLT14.TED.tst2012.de-en.en.xml"
    path.unlink()
    assert missing_files(tmp_path) == [path.name]
    assert refusal(read_sets, tmp_path) == f"{path}: no such file, neither plain nor with .gz or .xz"
