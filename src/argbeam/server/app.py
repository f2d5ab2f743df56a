"""A run over HTTP: `POST /decode` for programs, a page with `POST /inspect` and `/next` for people, and `GET /health`.

Addresses are local unless asked otherwise, and then requests must name a local host: a page of another site cannot
reach the model through the browser of its reader.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from argbeam import __version__
from argbeam.errors import ArgbeamError, ConfigError, DataError
from argbeam.reports.inspection import live_page
from argbeam.runs.inspect_run import InspectRequest, describe_run, inspect_runs, next_of
from argbeam.runs.load import Run, above_beam
from argbeam.server.requests import BusyError, Limits, RequestQueue
from argbeam.settings.mistakes import first_mistake

LOCAL = ("localhost", "127.0.0.1", "[::1]")
# Requests that clients have sent when the server is stopped are answered, but not for longer than this.
STOP_SECONDS = 10
# The widest beam that the page draws, and the widest of a request: a search ends early after a batch, not within.
MOST_SHOWN, MOST_SERVED = 100, 500
Asked = TypeVar("Asked", bound="Body")
Answered = TypeVar("Answered")


class Body(BaseModel):
    """The body of a request: its keys, and none else."""

    model_config = ConfigDict(extra="forbid", strict=True)


class InspectBody(Body):
    """The body of `POST /inspect`: a line, its right output if known, the tokens that outputs are to begin with, and a
    beam, 0: the recipe's."""

    line: str
    gold: str = ""
    prefix: list[str] = []
    beam: int = Field(default=0, ge=0, le=MOST_SHOWN)


class NextBody(Body):
    """The body of `POST /next`: the tokens after a prefix."""

    line: str
    prefix: list[str] = []


class DecodeBody(Body):
    """The body of `POST /decode`; a beam of 0 is the recipe's."""

    lines: list[str]
    beam: int = Field(default=0, ge=0, le=MOST_SERVED)
    n_best: int = Field(default=1, ge=1, le=MOST_SERVED)


def make_app(run: Run, limits: Limits = Limits(), *, hosts: tuple[str, ...] = LOCAL) -> Starlette:  # noqa: B008 - frozen
    """The application; `hosts` are the names that requests may call it by, "*" for any."""
    queue = RequestQueue(run, limits)

    async def in_time(request: Request, answer: Future[Answered]) -> Answered:
        watching = asyncio.create_task(_cancel_when_left(request, answer))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), limits.seconds)
        except asyncio.CancelledError:
            raise BusyError("the server stops; try again later") from None
        finally:
            watching.cancel()

    async def decode(request: Request) -> Response:
        asked = await _parsed(DecodeBody, request, limits)
        answer = await run_in_threadpool(queue.ask, asked.lines, beam=asked.beam, n_best=asked.n_best)
        outputs = await in_time(request, answer)
        above = above_beam("n_best", asked.n_best, asked.beam or run.recipe.decode.beam)
        note = {"note": above} if above else {}
        return JSONResponse({"outputs": [[asdict(one) for one in line] for line in outputs], **note})

    async def inspect(request: Request) -> Response:
        asked = await _parsed(InspectBody, request, limits)
        beams = (asked.beam or run.recipe.decode.beam,)
        searched = InspectRequest(beams, lines=[asked.line], golds=[asked.gold], prefix=asked.prefix, attention=True)
        work = queue.call(lambda: inspect_runs([run], [searched.items(run)], searched))
        return JSONResponse(await in_time(request, work))

    async def next_tokens(request: Request) -> Response:
        asked = await _parsed(NextBody, request, limits)
        work = queue.call(lambda: next_of(run, asked.line, asked.prefix))
        return JSONResponse({"tokens": await in_time(request, work)})

    async def page(request: Request) -> Response:
        return HTMLResponse(live_page(describe_run(run)))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "run": repr(run), "waiting": len(queue), "version": __version__})

    @contextlib.asynccontextmanager
    async def open_until_stopped(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(queue.close)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/health", health),
            Route("/decode", decode, methods=["POST"]),
            Route("/inspect", inspect, methods=["POST"]),
            Route("/next", next_tokens, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers=dict.fromkeys((HTTPException, ArgbeamError, TimeoutError), _refuse),
        lifespan=open_until_stopped,
    )


def serve(
    run: Run,
    *,
    host: str,
    port: int,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    listens: Callable[[], None] = lambda: None,
) -> None:
    """Answer until the process is asked to stop (SIGINT, SIGTERM); `listens` is called once the port is taken."""
    import uvicorn

    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = str(error).partition(" (while attempting")[0]  # Python adds the address once more
        raise ConfigError(f"cannot listen at {host}, port {port}: {reason}; choose --host and --port") from None
    listens()
    app = make_app(run, limits, hosts=LOCAL if host in ("127.0.0.1", "localhost", "::1") else ("*",))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=STOP_SECONDS)
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


async def _parsed(kind: type[Asked], request: Request, limits: Limits) -> Asked:
    """The body, read no further than the limit; what it may hold is that of its kind."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(415, "content-type: application/json is accepted")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limits.bytes:
            raise HTTPException(413, f"a body above {limits.bytes:,} bytes; send less at a time")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        raise HTTPException(400, first_mistake(error.errors(include_url=False), "the body", table=kind)) from None


async def _cancel_when_left(request: Request, answer: Future[Any]) -> None:
    """Cancel the answer once its client has closed the connection: no other message follows the body."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answer.cancel()


async def _refuse(request: Request, error: Exception) -> Response:
    """An error as one line of JSON, with the status that says whose fault it is."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    for kind, code in ((DataError, 400), (BusyError, 503), (TimeoutError, 503)):
        status = code if isinstance(error, kind) else status
    said = error.detail if isinstance(error, HTTPException) else str(error) or "no answer in time; try again later"
    return Response(json.dumps({"error": said}, ensure_ascii=False) + "\n", status, media_type="application/json")
