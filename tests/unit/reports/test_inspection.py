"""The page of `argbeam inspect`: its data is data, and in a browser it shows the figure of the paper."""

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import argbeam.reports
from argbeam.decoding import inspection
from argbeam.decoding.batch_decoder import BatchDecoder
from argbeam.decoding.inspection import TrainingSearch, inspect_examples
from argbeam.reports.inspection import inspection_page, write_inspection
from argbeam.runs.inspect_run import TokenTable, sentence_record
from argbeam.search.gold import Restart
from argbeam.search.score_rules import LastScore
from argbeam.search.search import SearchSettings
from argbeam.search.stop_rules import StopTop
from argbeam.tasks.contract import Item
from browser import CHROMIUM, Browser, opened_browser
from figure_1 import GOLD, SUCCESSORS, VOCABULARY, model
from toy_task import ToyTask

REPORTS = Path(argbeam.reports.__file__).parent
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: `apt-get install chromium` brings one")
HOSTILE = '</script><script>document.title = "taken"</script><img src=x onerror="document.title = 1">'
RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd \u0639\u0631\u0628\u064a \u202e reversed"


def data_of(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_data_with_any_text_comes_back_from_the_page_and_ends_no_script(tmp_path: Path) -> None:
    data = {"texts": [HOSTILE, RIGHT_TO_LEFT, "\u2028\u2029", "<!--", "]]>", "&lt;", "@SCRIPT@", '"\\']}
    page, plain = write_inspection(data, tmp_path)
    assert data_of(page.read_text(encoding="utf-8")) == data == json.loads(plain.read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2 and "<img" not in text and "<!--" not in text


def test_only_the_pages_own_script_and_style_may_run_and_nothing_is_fetched() -> None:
    page = inspection_page("{}")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "innerHTML" not in page and "document.write" not in page


def figure_data() -> dict[str, Any]:
    """The search of the figure as `inspect_runs` gives it, and a second sentence without gold and with hostile text."""
    task = ToyTask(SUCCESSORS, open_length=False, source=VOCABULARY, target=VOCABULARY)
    decoder = BatchDecoder(model(), task, LastScore(), StopTop(), torch.device("cpu"), batch=2)
    item = Item(tuple(GOLD.split()), tuple(GOLD.split()), tuple(GOLD.split()), reference="0")
    training = TrainingSearch(SUCCESSORS, SearchSettings(3, LastScore(), n_best=0), Restart(1.0))
    examples, tokens = [task.example(item, 0)], TokenTable()
    (found,) = inspect_examples(decoder, examples, beam=3, training=training)
    record = sentence_record(task, item, examples[0], found, tokens)
    (bare,) = inspect_examples(decoder, [replace(examples[0], target=())], beam=3)
    other = sentence_record(task, item, replace(examples[0], target=()), bare, tokens)
    other["outputs"][0][0] = HOSTILE
    about = {"beam": 3, "policy": "restart", "margin": 1.0, "margin_per_token": 0.0, "constrained": False, "own": True}
    run = {"run": HOSTILE, "system": "Figure 1", "task": "t", "model": "m", "rule": "last_score", "stop": "length"}
    run |= {"vocabulary": 20, "training": about, "with_gold": 1, "right": 0, "search_errors": 0}
    run |= {"lost": {"3": {"lost": 1, "by_step": [0, 0, 0, 1]}}}
    sentences = [{"source": "figure", "gold": GOLD, "runs": [record]}]
    sentences += [{"source": HOSTILE, "gold": RIGHT_TO_LEFT, "runs": [other]}]
    sentences += [{"source": "x" * 10**6, "gold": "", "runs": [other]}]
    return {"split": "dev", "beam": 3, "runs": [run], "sentences": sentences, "tokens": tokens.texts}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


NODES = """[...document.querySelectorAll(".node")].map((n) => [Number(n.dataset.step) + 1,
    n.querySelectorAll("text")[0].textContent, n.querySelectorAll("text")[1].textContent].join(" "))"""


@needs_browser
def test_the_page_shows_the_figure_and_hostile_text_as_text(browser: Browser, tmp_path: Path) -> None:
    """A star marks gold, a triangle the rival; steps count from 1. The last click is on "barks" of step 4."""
    page, _ = write_inspection(figure_data() | {"attention": True}, tmp_path)
    browser.open(page)
    assert "This model (m) has no attention to show." in browser.value("runs.textContent")
    assert "Gold falls off the beam at step 4: rank 4, 1 behind the last place." in browser.value("runs.textContent")
    browser.press("v")
    assert "Gold's margin is violated at steps 4 and 6." in browser.value("runs.textContent")
    nodes = [node for node in browser.value(NODES) if not node.endswith("-100")]
    assert nodes == [
        *("1 \u2605 a 5", "1 the 4.5", "1 \u25b2 one 3"),
        *("2 brown 4", "2 \u2605 red 3", "2 \u25b2 brown 1.5"),
        *("3 cat 5", "3 \u2605 dog 4", "3 \u25b2 cat 2"),
        *("4 sleeps 6", "4 barks 5", "4 \u25b2 sleeps 3", "4 \u2605 runs 2"),
        *("5 fast 4", "5 \u2605 quickly 3.5", "5 \u25b2 home 1"),
        *("6 \u25b2 today 2.5", "6 \u2605 today 2", "6 now 0.5"),
    ]
    assert browser.value('document.querySelectorAll(".restart").length') == 1
    browser.click('.node[data-step="3"][data-place="1"]')
    chosen = browser.value('document.getElementById("node").textContent')
    assert "a red dog barks" in chosen and "score 5" in chosen
    browser.press("ArrowLeft")
    assert "gold's prefix" in browser.value('document.getElementById("node").textContent')
    for text in (HOSTILE, RIGHT_TO_LEFT):
        browser.press("j") if text == HOSTILE else None
        assert text in browser.value('document.getElementById("sentence").textContent')
    assert HOSTILE in browser.value("runs.textContent")
    browser.press("j")
    assert browser.value('document.getElementById("place").textContent') == "sentence 3"
    browser.value('(filter.value = "figure", filter.dispatchEvent(new Event("input")), 1)')
    assert browser.value('document.getElementById("count").textContent') == "1 of 3"
    assert browser.value('document.querySelectorAll("img, script:not([id]) ~ script").length') == 0
    assert browser.value("document.title") == "argbeam inspect"
    assert browser.faults == []


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_no_page_is_wider_than_its_screen_and_a_chosen_hypothesis_is_in_sight(
    width: int, browser: Browser, tmp_path: Path
) -> None:
    page, _ = write_inspection(figure_data(), tmp_path)
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=700, deviceScaleFactor=1, mobile=width < 500)
    browser.open(page)
    browser.press("ArrowRight")
    bottom = browser.value('document.getElementById("node").querySelector("p").getBoundingClientRect().bottom')
    assert browser.value("document.documentElement.scrollWidth") <= width and 0 < bottom <= 700
    browser.call("Emulation.clearDeviceMetricsOverride")


@needs_browser
def test_a_filter_that_no_sentence_passes_leaves_nothing_of_the_last_one(browser: Browser, tmp_path: Path) -> None:
    page, _ = write_inspection(figure_data(), tmp_path)
    browser.open(page)
    browser.press("j")
    browser.press("ArrowRight")
    for text, said in (("nowhere", "No sentence is selected"), ("", HOSTILE)):
        browser.value(f"(filter.value = '{text}', filter.dispatchEvent(new Event('input')), 1)")
        browser.press("ArrowRight")
        browser.press("v")
        shown = browser.value("document.querySelector('main').innerText")
        assert said in shown and ("hypothesis" in shown) is (text == "")
    assert browser.value('document.getElementById("place").textContent') == "sentence 2"  # the one of before
    assert browser.faults == []


@needs_browser
@pytest.mark.parametrize(
    ("outputs", "said"),
    [([["", -4.3, True]], "(empty)"), ([["", -4.3, False]], "(empty) (unfinished)"), ([], "none: a dead end")],
)
def test_an_output_without_words_and_no_output_are_told_apart(
    outputs: list[Any], said: str, browser: Browser, tmp_path: Path
) -> None:
    data = figure_data()
    data["sentences"][0]["runs"][0]["outputs"] = outputs
    page, _ = write_inspection(data, tmp_path)
    browser.open(page)
    row = browser.value("document.querySelector('#runs table tr:nth-child(2) td:nth-child(3)').textContent")
    assert row == said


@needs_browser
def test_no_token_covers_its_score_and_arrows_reach_both_runs(browser: Browser, tmp_path: Path) -> None:
    """Tokens of wide letters, of one long word and of none at all."""
    data = figure_data()
    for sentence in data["sentences"]:
        sentence["runs"] *= 2
    data["runs"] *= 2
    data["tokens"] = [("W" * 9, "\u6f22\u5b57" * 9, "i" * 60, "")[i % 4] for i in range(len(data["tokens"]))]
    scores = data["sentences"][0]["runs"][0]["decoding"]["scores"]
    scores[:] = [[-1234.567 for _ in step] for step in scores]
    page, _ = write_inspection(data, tmp_path)
    browser.open(page)
    box = "(text) => text.getBoundingClientRect()"
    apart = f"""[...document.querySelectorAll(".node")].map((node) => {{
        const [token, score] = [...node.querySelectorAll("text")].map({box});
        return token.width ? score.left - token.right : 1; }})"""
    gaps = browser.value(apart)
    assert len(gaps) > 20 and min(gaps) > 0
    browser.value("document.querySelectorAll('.tree')[1].focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    chosen = "[...document.querySelectorAll('.node.chosen')].map((n) => [n.closest('svg').dataset.run, n.dataset.step])"
    assert browser.value(chosen) == [["1", "1"]]


# The drawing as a file of its own, with the page's style of drawings.
PICTURE = """(() => { const drawing = document.querySelector(".tree svg").cloneNode(true);
    drawing.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    drawing.setAttribute("viewBox", `0 0 ${drawing.getAttribute("width")} ${drawing.getAttribute("height")}`);
    return drawing.outerHTML.replaceAll("><", ">\\n<"); })()"""


@needs_browser
@pytest.mark.parametrize("view", ["plain", "training"])
def test_the_pictures_of_the_figure_in_the_docs_are_the_pages(
    view: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ARGBEAM_WRITE_PICTURES=1` writes them anew. The figure has no dropped hypotheses, and no scores of what would
    follow them: the plain search ends where gold falls off."""
    monkeypatch.setattr(inspection, "_SHOWN", 0)
    data = figure_data()
    (searched,) = data["sentences"][0]["runs"]
    searched["decoding"] = {key: steps[: searched["lost"]] for key, steps in searched["decoding"].items()}
    page, _ = write_inspection(data, tmp_path)
    browser.open(page)
    if view == "training":
        browser.press("v")
    styles = [(REPORTS / name).read_text(encoding="utf-8") for name in ("style.css", "inspection.css")]
    used = [line for line in styles[1].splitlines() if re.match(r"(svg|\.edge|\.node|\.restart|\.bad)", line)]
    style = "\n".join([styles[0].partition("* {")[0], *used, "svg { background: var(--paper) }"])
    first, _, rest = browser.value(PICTURE).partition("\n")
    picture = f"{first}\n<style>\n{style}\n</style>\n{rest}\n"
    path = Path(__file__).parents[3] / "docs" / "images" / f"figure-1-{view}.svg"
    if os.environ.get("ARGBEAM_WRITE_PICTURES"):
        path.write_text(picture, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == picture


@needs_browser
def test_a_thousand_sentences_are_soon_ready_and_few_are_drawn(browser: Browser, tmp_path: Path) -> None:
    data = figure_data()
    data["sentences"] = data["sentences"][:1] * 1000
    page, _ = write_inspection(data, tmp_path)
    started = time.monotonic()
    browser.open(page)
    browser.press("j")
    assert browser.value('document.getElementById("place").textContent') == "sentence 2"
    assert time.monotonic() - started < 10  # well below 1 s on a quiet machine; tests may run on a busy one
    assert browser.value('document.querySelectorAll(".item").length') < 100
