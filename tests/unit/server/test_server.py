"""The server against the library: the same answers to fifty clients at once, and one line for what it refuses."""

import http.client
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

import argbeam
from argbeam.decoding.batch_decoder import BatchDecoder
from argbeam.errors import ConfigError, DataError
from argbeam.runs.inspect_run import InspectRequest, inspect_runs
from argbeam.server.app import make_app, serve
from argbeam.server.requests import BusyError, Limits, RequestQueue
from browser import CHROMIUM, Browser, opened_browser
from command import in_process
from loss_cases import score
from refusals import refusal
from small_runs import PRETRAIN, finish, short_text, small_recipe

LIMITS = Limits(bytes=20_000, lines=60, seconds=20.0)
# Seconds after which a test fails that waits for another thread.
SOON = 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of word ordering."""
    folder = tmp_path_factory.mktemp("served")
    finish(small_recipe(data=short_text(folder), stages={"only": PRETRAIN}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def run(path: Path) -> argbeam.Run:
    return argbeam.load(path)


@dataclass(frozen=True)
class Client:
    port: int

    def send(self, verb: str, address: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        kind = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(verb, address, body, kind)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text.startswith(b"{") else text.decode()

    def decode(self, **asked: Any) -> tuple[int, Any]:
        return self.send("POST", "/decode", json.dumps(asked).encode())


@contextmanager
def serving(run: argbeam.Run, limits: Limits, *, stop_seconds: int | None = None) -> Iterator[Client]:
    """The server in a thread, at a free port."""
    how: dict[str, Any] = {"port": 0, "log_level": "critical", "timeout_graceful_shutdown": stop_seconds}
    server = uvicorn.Server(uvicorn.Config(make_app(run, limits), **how))
    thread = threading.Thread(target=server.run, daemon=True)  # a test that fails does not wait for it
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(SOON)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(run: argbeam.Run) -> Iterator[Client]:
    with serving(run, LIMITS) as found:
        yield found


def test_more_outputs_than_the_beam_holds_are_as_many_as_it_holds_and_the_answer_says_so(client: Client) -> None:
    for beam, most in ((2, 2), (0, 5)):
        status, answer = client.decode(lines=["ba ti ko lu"], beam=beam, n_best=9)
        assert (status, len(answer["outputs"][0])) == (200, most)
        assert answer["note"] == f"n_best 9 is above the beam: at most {most} outputs a line"
    assert list(client.decode(lines=["ba ti"], beam=2, n_best=2)[1]) == ["outputs"]


def test_fifty_clients_at_once_get_the_answers_of_the_library(client: Client, run: argbeam.Run) -> None:
    lines = [" ".join(words) for words in itertools.permutations(["ba", "ti", "ko", "lu"], 3)]
    asked = [[lines[n % len(lines)], "", lines[3 * n % len(lines)]] for n in range(100)]
    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(lambda n: client.decode(lines=asked[n], beam=2 + n % 3, n_best=2), range(100)))
    for n, (status, answer) in enumerate(answers):
        assert status == 200
        texts = [[output["text"] for output in line] for line in answer["outputs"]]
        assert [line[0] if line else "" for line in texts] == run.decode(asked[n], beam=2 + n % 3)
        assert texts[1] == []
        for found, (_, decoded) in zip(answer["outputs"], run.search(asked[n], beam=2 + n % 3, n_best=2), strict=True):
            scores = [hypothesis.score for hypothesis in decoded.hypotheses]
            assert [output["score"] for output in found] == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "the body: not JSON: EOF while parsing"),
        (b"[]", 400, "the body: found a list, accepted: a table"),
        (b'{"lines": "ba"}', 400, 'the body: lines = "ba": found a string, accepted: a list of strings'),
        (
            b'{"lines": ["ba"], "beam": 0.5}',
            400,
            "the body: beam = 0.5: found a number, accepted: a whole number at least 0 and at most 500",
        ),
        (b'{"lines": ["ba"], "beams": 5}', 400, "the body: unknown key beams; did you mean beam?"),
        (b'{"lines": ["ba"], "n_best": 0}', 400, "the body: n_best = 0: must be at least 1 and at most 500"),
        (b'{"lines": ["ba"], "beam": 501}', 400, "the body: beam = 501: must be at least 0 and at most 500"),
        (json.dumps({"lines": ["ba"] * 61}).encode(), 400, "61 lines; at most 60 in one request"),
        (json.dumps({"lines": ["ba", "ti " * 3000]}).encode(), 400, "line 2: 3,000 words; decode.max_words ="),
        (b'{"lines": ["' + b"x" * 20_000 + b'"]}', 413, "a body above 20,000 bytes"),
    ],
)
def test_a_request_that_is_wrong_is_refused_in_one_line(client: Client, body: bytes, status: int, said: str) -> None:
    found, answer = client.send("POST", "/decode", body)
    assert (found, answer["error"].startswith(said)) == (status, True), answer


def test_another_address_verb_type_or_host_is_refused(client: Client) -> None:
    assert client.send("GET", "/nothing") == (404, {"error": "Not Found"})
    assert client.send("GET", "/decode")[0] == 405
    assert client.send("POST", "/decode", b"{}", content_type="text/plain")[0] == 415
    assert client.send("GET", "/health", host="elsewhere.example")[0] == 400


def test_text_comes_back_as_it_is(client: Client) -> None:
    status, answer = client.decode(lines=["<script>alert(1)</script> \u202eba"])
    assert status == 200
    assert sorted(answer["outputs"][0][0]["text"].split()) == ["<script>alert(1)</script>", "\u202eba"]


def test_health_names_the_run(client: Client, run: argbeam.Run) -> None:
    status, answer = client.send("GET", "/health")
    assert (status, answer["status"], answer["run"]) == (200, "ok", repr(run))


def test_outputs_after_forced_tokens_are_those_of_the_library(client: Client, run: argbeam.Run) -> None:
    """All orders of three words that begin with the forced ones, as a beam of six finds them without."""
    ((_, free),) = run.search(["ba ti ko"], beam=6, n_best=6)
    texts = [run.task.text(run.task.item("ba ti ko"), one.tokens) for one in free.hypotheses]
    for prefix in ([], ["ti"], ["ko", "ba"]):
        status, answer = client.send(
            "POST", "/inspect", json.dumps({"line": "ba ti ko", "prefix": prefix, "beam": 6}).encode()
        )
        assert status == 200
        (sentence,) = answer["sentences"]
        found = [text for text, _, _ in sentence["runs"][0]["outputs"]]
        assert found == [text for text in texts if text.split()[: len(prefix)] == prefix]


def test_the_next_tokens_have_the_models_probabilities(client: Client, run: argbeam.Run) -> None:
    status, answer = client.send("POST", "/next", json.dumps({"line": "ba ti ko", "prefix": ["ti"]}).encode())
    assert status == 200
    item = run.task.item("ba ti ko")
    tokens = tuple(run.task.target.encode(["ti", "ba"]))
    batch = argbeam.make_batch([replace(run.task.example(item, 0), target=tokens)])
    with torch.no_grad():
        scores_V = score(run.model, run.model.encode(batch, None), batch.target_BT)[0, 1]
    words = run.task.target.words
    expected = sorted(range(len(words)), key=lambda token: -scores_V[token].item())[:20]
    assert [row["token"] for row in answer["tokens"]] == [words[token] for token in expected]
    for row, token in zip(answer["tokens"], expected, strict=True):
        assert row["probability"] == pytest.approx(scores_V.softmax(0)[token].item(), rel=1e-4)
        assert row["valid"] == (words[token] in ("ba", "ko"))


@pytest.mark.parametrize("prefix", [["ti", "ti"], ["nowhere"], ["<s>"], ["ba", "ti", "ko", "ba"]])
def test_a_forced_token_that_is_not_valid_is_refused(client: Client, prefix: list[str]) -> None:
    for address in ("/inspect", "/next"):
        status, answer = client.send("POST", address, json.dumps({"line": "ba ti ko", "prefix": prefix}).encode())
        assert (status, "not a valid successor" in answer["error"]) == (400, True)


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: `apt-get install chromium` brings one")
def test_in_a_browser_a_forced_token_gives_what_the_library_gives(
    client: Client, run: argbeam.Run, tmp_path: Path
) -> None:
    outputs = "[...document.querySelectorAll('#runs tr td:nth-child(3)')].map((cell) => cell.textContent)"
    hostile = '</script><script>document.title="taken"</script>'

    def ask(browser: Browser, line: str, times: int) -> None:
        browser.value(f"document.getElementById('line').value = {json.dumps(line)}")
        browser.click("#ask button")
        browser.wait(f"document.body.dataset.searched === '{times}'")

    with opened_browser(tmp_path) as browser:
        browser.open(f"http://127.0.0.1:{client.port}/")
        ask(browser, "ba ti ko", 1)
        ((_, free),) = run.search(["ba ti ko"], beam=5, n_best=5)
        item = run.task.item("ba ti ko")
        assert browser.value(outputs) == [run.task.text(item, one.tokens) for one in free.hypotheses]
        browser.click('.node[data-step="0"][data-place="0"]')
        browser.wait("document.querySelector('#next-tokens button:enabled')")
        first = browser.value("document.querySelector('#node .text').textContent")
        token = "document.querySelector('#next-tokens tr:has(button:enabled) td').textContent"
        forced = [first, browser.value(token)]
        browser.click("#next-tokens button:enabled")
        browser.wait("document.body.dataset.searched === '2'")
        asked = InspectRequest((5,), lines=["ba ti ko"], prefix=forced)
        data = inspect_runs([run], [asked.items(run)], asked)
        assert browser.value(outputs) == [text for text, _, _ in data["sentences"][0]["runs"][0]["outputs"]]
        browser.value("document.getElementById('gold').value = 'ko ti ba'")
        ask(browser, "ba ti ko", 3)
        asked = InspectRequest((5,), lines=["ba ti ko"], golds=["ko ti ba"])
        (sentence,) = inspect_runs([run], [asked.items(run)], asked)["sentences"]
        stars = browser.value("[...document.querySelectorAll('.node.gold title')].map((node) => node.textContent)")
        assert stars == sentence["gold"].split() == ["ko", "ti", "ba"]
        browser.value("document.getElementById('gold').value = ''")
        ask(browser, f"{hostile} ba", 4)
        assert hostile in browser.value("document.getElementById('sentence').textContent")
        assert browser.value("document.title") == "argbeam inspect"
        assert browser.faults == []


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: `apt-get install chromium` brings one")
def test_in_a_browser_a_search_that_fails_leaves_the_one_before(client: Client, tmp_path: Path) -> None:
    """What follows "ba" in the shown sentence is asked for that sentence, not for the one that failed."""
    with opened_browser(tmp_path) as browser:
        browser.open(f"http://127.0.0.1:{client.port}/")
        browser.value("document.getElementById('line').value = 'ba'")
        browser.click("#ask button")
        browser.wait("document.body.dataset.searched === '1'")
        for name, text in (("line", "ko"), ("gold", "lu")):
            browser.value(f"document.getElementById('{name}').value = '{text}'")
        browser.click("#ask button")
        browser.wait("document.getElementById('said').textContent")
        assert "gold has other words" in browser.value("document.getElementById('said').textContent")
        browser.click(".node")
        browser.wait("document.getElementById('next-tokens')")
        assert browser.value("document.getElementById('said').textContent") == ""


def test_requests_that_wait_are_decoded_together_and_a_full_line_is_refused(
    run: argbeam.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one request is decoded, three wait: two share a search, one has another beam. A fourth finds no place."""
    begun, go_on, batches = threading.Event(), threading.Event(), []
    own = argbeam.Run.search_items

    def slow(self: argbeam.Run, lines: list[str], **how: Any) -> Any:
        batches.append((list(lines), how["beam"]))
        begun.set()
        assert go_on.wait(SOON)
        return own(self, lines, **how)

    monkeypatch.setattr(argbeam.Run, "search_items", slow)
    queue = RequestQueue(run, Limits(waiting=3))
    first = queue.ask(["ba ti"])
    assert begun.wait(SOON)
    waiting = [queue.ask(["ti ko"]), queue.ask(["lu"], beam=2), queue.ask(["ko", "ba"])]
    assert "3 requests wait" in refusal(queue.ask, ["ba"], error=BusyError)
    assert "decode.max_words" in refusal(queue.ask, ["ba " * 3000], error=DataError)
    go_on.set()
    queue.close()
    assert batches == [(["ba ti"], 5), (["ti ko", "ko", "ba"], 5), (["lu"], 2)]
    found = [[line[0].text for line in answer.result(SOON)] for answer in (first, *waiting)]
    assert found == [run.decode(lines) for lines in (["ba ti"], ["ti ko"], ["lu"], ["ko", "ba"])]
    refusal(queue.ask, ["ba"], error=BusyError)


def test_a_client_whose_time_is_over_is_told_and_the_server_goes_on(
    run: argbeam.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, go_on = argbeam.Run.search_items, threading.Event()
    monkeypatch.setattr(argbeam.Run, "search_items", lambda *a, **k: (go_on.wait(SOON), own(*a, **k))[1])
    with serving(run, Limits(seconds=0.2)) as client:
        assert client.decode(lines=["ba"]) == (503, {"error": "no answer in time; try again later"})
        go_on.set()
        assert client.send("GET", "/health")[0] == 200


def test_what_nobody_waits_for_any_more_is_not_decoded_to_its_end(
    run: argbeam.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beam so wide that every sentence is a batch of its own: the search ends after the first."""
    begun, go_on, own = threading.Event(), threading.Event(), BatchDecoder._decode_batch
    batches: list[int] = []

    def slow(self: BatchDecoder, examples: Any, *rest: Any) -> Any:
        batches.append(len(examples))
        begun.set()
        assert go_on.wait(SOON)
        return own(self, examples, *rest)

    monkeypatch.setattr(BatchDecoder, "_decode_batch", slow)
    queue = RequestQueue(run)
    left = queue.ask(["ba ti"] * 5, beam=10 * run.decoder().batch)
    assert begun.wait(SOON)
    another = queue.ask(["ti ko"])
    assert left.cancel()
    go_on.set()
    assert another.result(SOON)[0][0].text == run.decode(["ti ko"])[0]
    queue.close()
    assert batches[:2] == [1, 1] and len(batches) == 3  # the one of `left`, that of `another`, and that of `run.decode`


@pytest.fixture
def long_search(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, Iterator[int]]:
    """Every sentence is a slow batch of its own: whether one has begun, and their count."""
    begun, batches, own = threading.Event(), itertools.count(), BatchDecoder._decode_batch

    def slow(self: BatchDecoder, *rest: Any) -> Any:
        next(batches)
        begun.set()
        time.sleep(0.1)
        return own(self, *rest)

    monkeypatch.setattr(BatchDecoder, "_decode_batch", slow)
    monkeypatch.setattr(BatchDecoder, "_batch_size", lambda self, beam: 1)
    return begun, batches


def test_a_stop_ends_a_long_search_and_its_client_is_told(
    run: argbeam.Run, long_search: tuple[threading.Event, Iterator[int]]
) -> None:
    begun, batches = long_search
    with ThreadPoolExecutor(1) as pool:
        with serving(run, Limits(), stop_seconds=1) as client:
            asked = pool.submit(client.decode, lines=["ba ti"] * 1000)
            assert begun.wait(SOON)
        assert next(batches) < 500
        assert asked.result(SOON) == (503, {"error": "the server stops; try again later"})


def test_a_client_that_leaves_ends_its_search(
    run: argbeam.Run, long_search: tuple[threading.Event, Iterator[int]]
) -> None:
    begun, batches = long_search
    body = json.dumps({"lines": ["ba ti"] * 1000}).encode()
    with serving(run, Limits(), stop_seconds=1) as client:
        leaving = http.client.HTTPConnection("127.0.0.1", client.port, timeout=SOON)
        leaving.request("POST", "/decode", body, {"content-type": "application/json"})
        assert begun.wait(SOON)
        leaving.close()
        assert client.decode(lines=["ti ko"])[0] == 200
    assert next(batches) < 500


def test_a_port_that_is_taken_is_one_line(run: argbeam.Run, client: Client) -> None:
    said: list[bool] = []
    listens = partial(said.append, True)
    error = refusal(serve, run, host="127.0.0.1", port=client.port, listens=listens, error=ConfigError)
    assert error.startswith(f"cannot listen at 127.0.0.1, port {client.port}: ") and error.count("127.0.0.1") == 1
    assert not said


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_command_says_an_address_that_a_browser_opens(
    path: Path, host: str, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argbeam.server.app.serve", lambda run, *, host, port, listens: listens())
    done = in_process(monkeypatch, capfd)("serve", path, "--host", host, "--port", "8123")
    assert f" at http://{said}:8123; " in done.stderr


def test_the_command_serves_until_it_is_asked_to_stop(path: Path, run: argbeam.Run) -> None:
    command = [sys.executable, "-m", "argbeam", "serve", str(path), "--port"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = subprocess.Popen([*command, str(port)], stderr=subprocess.PIPE, text=True)
    assert served.stderr is not None
    assert served.stderr.readline() == f"serving {path} at http://127.0.0.1:{port}; Ctrl-C stops\n"
    for _ in range(400):
        try:
            status, answer = Client(port).decode(lines=["ba ti ko"])
            break
        except OSError:
            time.sleep(0.05)
    assert (status, answer["outputs"][0][0]["text"]) == (200, run.decode(["ba ti ko"])[0])
    served.send_signal(signal.SIGTERM)
    _, said = served.communicate(timeout=30)
    assert (served.returncode, said) == (-signal.SIGTERM, "")
