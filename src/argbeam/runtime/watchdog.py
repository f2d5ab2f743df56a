"""Connections between the processes of a group that carry nothing: they are there to break when a process dies.

A process that waits for a dead one inside a library hears nothing of it, on some backends for as long as the library's
patience lasts. The system closes a dead process's sockets at once, and a thread of every other process waits for that.
"""

import os
import secrets
import select
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# What is said before a process ends as it should, and by the first process of one that did not, with its number.
_GOODBYE, _LOST = b".", b"!"
# Seconds: to connect; for the main thread to end by itself, as all do that met the same error; and to unwind.
_CONNECT, _OWN_END, _UNWIND = 120.0, 3.0, 5.0


class Links:
    """A connection from the first process to every other one, and a thread that ends this process if one breaks."""

    def __init__(self, rank: int, size: int, address: str, first: Callable[[Callable[[], Any]], Any]) -> None:
        """`first(make)` is what `make` gives in the first process: the others learn from it where to connect."""
        self.rank, self.size = rank, size
        self.leaving, self.told = threading.Event(), threading.Event()
        server = _server(address) if rank == 0 else None
        where = first(lambda: {"port": server.getsockname()[1] if server else 0, "key": secrets.token_hex(16)})
        self.peers = {0: _connected(address, where, rank)} if server is None else _accepted(server, where["key"], size)
        threading.Thread(target=self._watch, name="argbeam links", daemon=True).start()

    def leave(self, *, well: bool) -> None:
        """From now on the others may end as they like. Without `well` they see this process as dead when it ends."""
        self.leaving.set()
        for peer in self.peers.values() if well else ():
            with suppress(OSError):
                peer.sendall(_GOODBYE)

    def line(self, other: int) -> str:
        """What a user reads when a process is lost."""
        return (
            f"process {self.rank} of {self.size}: process {other} has ended before its time; "
            "started again, training goes on from its last checkpoint"
        )

    def _watch(self) -> None:
        ranks = {peer: rank for rank, peer in self.peers.items()}
        while ranks:
            for peer in select.select(list(ranks), [], [])[0]:
                said = b""
                with suppress(OSError):
                    said = _received(peer, 1)
                    said += _received(peer, 8) if said == _LOST else b""
                rank = ranks.pop(peer)
                if said != _GOODBYE:
                    self._end(int(said[1:]) if len(said) > 1 else rank, list(ranks))
                    return

    def _end(self, lost: int, others: list[socket.socket]) -> None:
        for other in others:
            with suppress(OSError):
                other.sendall(_LOST + f"{lost:08d}".encode())
        if self.leaving.wait(_OWN_END):
            return
        print(f"argbeam: error: {self.line(lost)}", file=sys.stderr, flush=True)
        self.told.set()
        if not self.leaving.wait(_UNWIND):
            # The main thread waits for the dead process, inside a library that cannot be interrupted.
            os._exit(2)


def _server(address: str) -> socket.socket:
    try:
        family, *_, found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        server = socket.create_server(found[:2], family=family)
    except OSError:  # the address is a name for this machine that is not one of its own, as in some clusters
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
    server.settimeout(_CONNECT)
    return server


def _connected(address: str, where: dict[str, Any], rank: int) -> socket.socket:
    peer = socket.create_connection((address, where["port"]), timeout=_CONNECT)
    peer.sendall(f"{where['key']}{rank:08d}".encode())
    return _kept_alive(peer)


def _accepted(server: socket.socket, key: str, size: int) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with server:
        while len(peers) < size - 1:
            peer, _ = server.accept()
            peer.settimeout(_CONNECT)
            said = _received(peer, len(key) + 8)
            if secrets.compare_digest(said[: len(key)], key.encode()):
                peers[int(said[len(key) :])] = _kept_alive(peer)
            else:
                peer.close()  # not one of ours
    return peers


def _received(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def _kept_alive(peer: socket.socket) -> socket.socket:
    """A machine that loses its power closes nothing: the system asks it every so often whether it is still there."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer
