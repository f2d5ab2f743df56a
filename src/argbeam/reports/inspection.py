"""The page of `argbeam inspect`: one file that needs no other and no network, and its data as JSON."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from argbeam.files import write_atomic, writing

# In a page these could end the script that holds the data, or begin something else; JSON reads them back.
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


def write_inspection(data: dict[str, Any], out: Path) -> list[Path]:
    """Write inspect.html and inspect.json into the folder `out`; return both paths."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    texts = {"inspect.html": inspection_page(text), "inspect.json": text}
    with writing(out, "--out takes a folder"):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in texts.items():
            write_atomic(out / name, content.encode("utf-8", "replace"))
    return [out / name for name in texts]


def inspection_page(data: str) -> str:
    """The page around its data, a JSON text. Only the page's own script and style may run, and nothing is fetched."""
    return _page(data, _part("inspection.js"), fetches="'none'")


def live_page(data: dict[str, Any]) -> str:
    """The page of `argbeam serve`: a form instead of sentences; it asks its own server only."""
    script = _part("inspection.js") + _part("live.js")
    return _page(json.dumps(data, ensure_ascii=False), script, fetches="'self'")


def _page(data: str, script: str, *, fetches: str) -> str:
    page, style = _part("inspection.html"), _part("style.css") + _part("inspection.css")
    hashes = {"STYLE_HASH": _hash(style), "SCRIPT_HASH": _hash(script)}
    for name, part in {"STYLE": style, "SCRIPT": script, **hashes, "FETCHES": fetches}.items():
        page = page.replace(f"@{name}@", part)
    return page.replace("@DATA@", data.translate(_ESCAPES))


def _part(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
