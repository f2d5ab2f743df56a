"""IWSLT 2014 German to English as it is distributed: talks with tags for training, XML for the other sets.

<url>http://...</url>                                  <doc docid="69" genre="lectures">
<keywords>talks, design</keywords>                     <seg id="1"> A sentence . </seg>
<title>A title</title>                                 <seg id="2"> The next one . </seg>
A sentence of the talk.                                </doc>
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from argbeam.data.readers.text import COMPRESSIONS, TextPair, open_lines
from argbeam.errors import DataError

SOURCE, TARGET = "de", "en"
_TRAIN = f"train.tags.{SOURCE}-{TARGET}"
# The set of 2012 is of TEDx talks, and named so.
_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_FOLDERS = (".", f"{SOURCE}-{TARGET}", "iwslt14", f"iwslt14/{SOURCE}-{TARGET}")

# Lines about a talk are dropped; titles and descriptions are translated, and stay without their tags.
_ABOUT = re.compile(r"\s*</?(?:url|talkid|keywords|speaker|reviewer|translator|doc|talk|transcript)\b")
_TAGS = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r"<seg id=\"([0-9]+)\">(.*)</seg>")


def iwslt_folder(root: Path) -> Path | None:
    """The folder under `root` that holds the training files, if one does."""
    folders = (root / name for name in _FOLDERS)
    return next((folder for folder in folders if _first(folder, f"{_TRAIN}.{SOURCE}") is not None), None)


def missing_files(folder: Path) -> list[str]:
    """The files of the distribution that the folder should hold and does not."""
    names = [f"{_TRAIN}.{side}" for side in (SOURCE, TARGET)]
    names += [_set_name(part, side) for part in _SETS for side in (SOURCE, TARGET)]
    return [name for name in names if _first(folder, name) is None]


def read_talks(folder: Path) -> list[TextPair]:
    """The training pairs in order, without tags. A side may be empty."""
    source, target = (_find(folder, f"{_TRAIN}.{side}") for side in (SOURCE, TARGET))
    sources, targets = list(_sentences(source)), list(_sentences(target))
    _need_as_many(source, len(sources), target, len(targets))
    return [TextPair(*texts) for texts in zip(sources, targets, strict=True)]


def read_sets(folder: Path) -> list[TextPair]:
    """The pairs of the five sets, one set after the other."""
    pairs: list[TextPair] = []
    for part in _SETS:
        source, target = (_find(folder, _set_name(part, side)) for side in (SOURCE, TARGET))
        sources, targets = list(_segments(source)), list(_segments(target))
        _need_as_many(source, len(sources), target, len(targets))
        for (line, number, text), (other_line, other, translation) in zip(sources, targets, strict=True):
            if number != other:
                raise DataError(f"{target}:{other_line}: segment {other} stands where {source}:{line} has {number}")
            pairs.append(TextPair(text, translation))
    return pairs


def _sentences(path: Path) -> Iterator[str]:
    return (_TAGS.sub("", text).strip() for _, text in open_lines(path) if not _ABOUT.match(text))


def _segments(path: Path) -> Iterator[tuple[int, str, str]]:
    for line, text in open_lines(path):
        if "<seg" not in text:
            continue
        found = _SEGMENT.search(text)
        if found is None:
            raise DataError(f'{path}:{line}: not a segment; <seg id="1"> text </seg> is expected, one a line')
        sentence = html.unescape(found[2]).strip()
        if not sentence:
            raise DataError(f"{path}:{line}: segment {found[1]} is empty; at least one word is expected")
        yield line, found[1], sentence


def _set_name(part: str, side: str) -> str:
    return f"IWSLT14.{part}.{SOURCE}-{TARGET}.{side}.xml"


def _find(folder: Path, name: str) -> Path:
    found = _first(folder, name)
    if found is None:
        raise DataError(f"{folder / name}: no such file, neither plain nor with .gz or .xz")
    return found


def _first(folder: Path, name: str) -> Path | None:
    # Copies with TED in the place of TEDX are about.
    names = [name, name.replace(".TEDX.", ".TED.")]
    paths = (folder / f"{one}{ending}" for one in names for ending in COMPRESSIONS)
    return next((path for path in paths if path.is_file()), None)


def _need_as_many(source: Path, sources: int, target: Path, targets: int) -> None:
    if not sources:
        raise DataError(f"{source}: no sentence in the file; at least one is expected")
    if sources != targets:
        raise DataError(f"{source}: {sources} sentences, but {target} has {targets}; each translates one of the other")
