"""Files in the formats of IWSLT 2014, small and invented."""

from collections.abc import Callable
from pathlib import Path

SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
GERMAN = """<url>http://www.example.org/talks/one</url>
<keywords>talks, fish</keywords>
<speaker>Ada Example</speaker>
<talkid>1</talkid>
<title>Ein Fisch</title>
<description>Ein Vortrag: Fische & mehr.</description>
 Das ist ein Fisch.\u0020
<reviewer href="http://www.example.org">B</reviewer>

Er schwimmt < 3 km.
"""
ENGLISH = """<url>http://www.example.org/talks/one</url>
<keywords>talks, fish</keywords>
<speaker>Ada Example</speaker>
<talkid>1</talkid>
<title>A fish</title>
<description>A talk: fish & more.</description>
This is a fish.
<reviewer href="http://www.example.org">B</reviewer>
<translator href="http://www.example.org">C</translator>
Nothing.
It swims < 3 km.
"""


def xml(*sentences: str, first: int = 1) -> str:
    segments = "".join(f'<seg id="{number}"> {text} </seg>\n' for number, text in enumerate(sentences, first))
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<srcset setid="x" srclang="de">\n<doc docid="1">\n'
    return f"{head}<title>A title</title>\n{segments}</doc>\n</srcset>\n</mteval>\n"


def write_iwslt(
    folder: Path,
    german: str = GERMAN,
    english: str = ENGLISH,
    *,
    ending: str = "",
    pack: Callable[[bytes], bytes] = bytes,
) -> Path:
    """The distribution's files: training talks, and sets of one segment each that says which set it is of."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"train.tags.de-en.de": german, "train.tags.de-en.en": english}
    for part in SETS:
        files[f"IWSLT14.{part}.de-en.de.xml"] = xml(f"Satz aus {part}.")
        files[f"IWSLT14.{part}.de-en.en.xml"] = xml(f"Sentence of {part}.")
    for name, text in files.items():
        (folder / f"{name}{ending}").write_bytes(pack(text.encode()))
    return folder
