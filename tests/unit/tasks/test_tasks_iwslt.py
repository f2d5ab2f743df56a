"""The preparation of IWSLT 2014: what is kept, what goes to dev, and how it looks."""

from pathlib import Path

import pytest

from argbeam.settings import IwsltData
from argbeam.tasks.iwslt import fits, prepared
from argbeam.tasks.sources import stream_pairs
from iwslt_files import write_iwslt, xml
from refusals import refusal
from small_runs import finish, small_recipe


def write_talks(folder: Path, german: list[str], english: list[str]) -> Path:
    return write_iwslt(folder, "".join(f"{line}\n" for line in german), "".join(f"{line}\n" for line in english))


def test_every_23rd_pair_that_is_kept_goes_to_dev(tmp_path: Path) -> None:
    """50 pairs, of which the 1st and 30th are left out: the 23rd and 46th of the rest are the old 24th and 48th."""
    german = [f"Satz {number}" for number in range(1, 51)]
    english = [f"sentence {number}" for number in range(1, 51)]
    english[0] = "one two three four"  # two against four: more than 1.5
    english[29] = ""
    found = prepared(write_talks(tmp_path, german, english))
    assert [pair.source for pair in found.dev] == ["satz 24", "satz 48"]
    assert [pair.target for pair in found.dev] == ["sentence 24", "sentence 48"]
    train = [number for number in range(1, 51) if number not in (1, 24, 30, 48)]
    assert [pair.source for pair in found.train] == [f"satz {number}" for number in train]
    assert found.left_out == 2


def test_text_is_tokenised_by_its_language_and_lower_cased(tmp_path: Path) -> None:
    """Moses parts punctuation and English clitics; it keeps a German ordinal together, and escapes nothing here."""
    found = prepared(write_talks(tmp_path, ["Am 3. Mai, \u201eja\u201c."], ["On May 3, it's salt & pepper."]))
    assert found.train[0].source.split()[:3] == ["am", "3.", "mai"]
    assert found.train[0].target == "on may 3 , it 's salt & pepper ."


def test_test_sets_have_plain_apostrophes_and_training_text_does_not(tmp_path: Path) -> None:
    write_talks(tmp_path, ["Gib\u2019s mir"], ["it\u2019s mine"])
    (tmp_path / "IWSLT14.TED.dev2010.de-en.de.xml").write_text(xml("Gib\u2019s mir"), encoding="utf-8")
    (tmp_path / "IWSLT14.TED.dev2010.de-en.en.xml").write_text(xml("It\u2019s mine"), encoding="utf-8")
    found = prepared(tmp_path)
    assert found.test[0].target == "it 's mine"
    assert "\u2019" in found.train[0].target and "'" not in found.train[0].target
    assert len(found.test) == 5


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        *((1, 1, True), (50, 50, True), (51, 50, False), (50, 51, False), (2, 3, True), (2, 4, False), (4, 2, False)),
        *((0, 1, False), (1, 0, False), (0, 0, False), (34, 50, True), (33, 50, False)),
    ],
)
def test_pairs_are_kept_by_length_and_ratio(source: int, target: int, kept: bool) -> None:
    """50 / 34 = 1.47 and 50 / 33 = 1.52, on either side of 1.5."""
    assert fits(source, target) is kept


def test_the_kind_of_data_reads_all_splits_and_trains(tmp_path: Path) -> None:
    """25 pairs: 24 to train on, of them none is dev's."""
    lines = [f"wort {number % 5} ." for number in range(25)]
    write_talks(tmp_path / "de-en", lines, lines)
    data = IwsltData(root=str(tmp_path))
    assert [len(list(stream_pairs(data, split))) for split in ("train", "dev", "test")] == [24, 1, 5]
    recipe = small_recipe(task="translation", data={"kind": "iwslt14", "root": str(tmp_path)})
    finish(recipe, tmp_path / "run")
    assert list((tmp_path / "run" / "model").glob("*.safetensors"))


def test_a_folder_without_the_corpus_is_an_error(tmp_path: Path) -> None:
    message = f"{tmp_path}: no train.tags.de-en.de there; IWSLT 2014 as distributed is expected"
    assert refusal(prepared, tmp_path) == message
