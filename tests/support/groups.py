"""Groups of processes as torchrun starts them, forked from one that has imported torch: a group takes a moment."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["argbeam.runs.session", "argbeam.cli.app"])


def start_group(
    size: int, folder: Path, work: Callable[..., None], *arguments: Any, forked: bool = False
) -> list[BaseProcess]:
    """Processes as of torchrun, each running `work(*arguments)`; stdout and stderr go to `out.RANK` and `err.RANK`.

    `forked` ones start from this process, with all that it has imported.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = [
        {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in range(size)
    ]
    context: Any = multiprocessing.get_context("fork") if forked else _CONTEXT
    processes = [context.Process(target=_member, args=(place, str(folder), work, arguments)) for place in places]
    for process in processes:
        process.start()
    return processes


def end_group(processes: Sequence[BaseProcess], *, seconds: float = 120) -> list[int | None]:
    """The exit codes; one that has not ended in time is killed, and has none."""
    codes = []
    for process in processes:
        process.join(seconds)
        codes.append(process.exitcode)
        process.kill()
        process.join()
    return codes


def in_group(size: int, folder: Path, work: Callable[..., None], *arguments: Any, forked: bool = False) -> None:
    """Run `work` in a group, well and to its end."""
    codes = end_group(start_group(size, folder, work, *arguments, forked=forked))
    assert codes == [0] * size, "\n".join(said(folder, rank) for rank in range(size))


def command(*words: str) -> None:
    """The command argbeam, as a process of torchrun's runs it."""
    from argbeam.cli.app import main

    sys.argv = ["argbeam", *words]
    main()


def said(folder: Path, rank: int) -> str:
    """What a process reported on stderr."""
    return (folder / f"err.{rank}").read_text(encoding="utf-8")


def _member(place: dict[str, Any], folder: str, work: Callable[..., None], arguments: Sequence[Any]) -> None:
    os.environ |= {name: str(value) for name, value in place.items()}
    torch.set_num_threads(1)
    sys.stdout, sys.stderr = (
        (Path(folder) / f"{name}.{place['RANK']}").open("w", encoding="utf-8", buffering=1) for name in ("out", "err")
    )
    work(*arguments)
