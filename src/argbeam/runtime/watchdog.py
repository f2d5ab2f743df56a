"""Notices the death of another process of the group, and ends this one.

A process that waits for a dead one inside a library may wait for as long as the library's timeout. The system closes
the sockets of a dead process at once: each process holds a connection that carries nothing, and a thread waits for it
to break.
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

# Sent before a process ends well; and by the first process, with the rank, when another one was lost.
_GOODBYE, _LOST = b".", b"!"
# Seconds to connect; for the main thread to end by itself, as after an error that all processes meet; and to unwind.
_CONNECT, _OWN_END, _UNWIND = 120.0, 3.0, 5.0
# A machine without power closes nothing: the system probes it after 30 s, and gives up after 6 probes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class Watchdog:
    """A connection from the first process to every other one, and a thread that ends this process if one breaks."""

    def __init__(self, rank: int, size: int, address: str, first: Callable[[Callable[[], Any]], Any]) -> None:
        """`first(make)` is the result of `make` in the first process: the others learn its port and key."""
        self.rank, self.size = rank, size
        self.leaving, self.reported = threading.Event(), threading.Event()
        server = _server(address) if rank == 0 else None
        where = first(lambda: {"port": server.getsockname()[1] if server else 0, "key": secrets.token_hex(16)})
        self.peers = {0: _connect(address, where, rank)} if server is None else _accept(server, where["key"], size)
        threading.Thread(target=self._watch, name="argbeam watchdog", daemon=True).start()

    def leave(self, *, well: bool) -> None:
        """Ignore the ends of others from now on. Without `well` they take the end of this process for a death."""
        self.leaving.set()
        for peer in self.peers.values() if well else ():
            with suppress(OSError):
                peer.sendall(_GOODBYE)

    def _watch(self) -> None:
        ranks = {peer: rank for rank, peer in self.peers.items()}
        while ranks:
            for peer in select.select(list(ranks), [], [])[0]:
                message = b""
                with suppress(OSError):
                    message = _receive(peer, 1)
                    message += _receive(peer, 8) if message == _LOST else b""
                rank = ranks.pop(peer)
                if message != _GOODBYE:
                    self._end(int(message[1:]) if len(message) > 1 else rank, list(ranks))
                    return

    def _end(self, lost: int, others: list[socket.socket]) -> None:
        for other in others:
            with suppress(OSError):
                other.sendall(_LOST + f"{lost:08d}".encode())
        if self.leaving.wait(_OWN_END):
            return
        print(
            f"argbeam: error: process {self.rank} of {self.size}: process {lost} ended unexpectedly; "
            "run the same command again: training resumes from the last checkpoint",
            file=sys.stderr,
            flush=True,
        )
        self.reported.set()
        if not self.leaving.wait(_UNWIND):
            # The main thread waits for the dead process, inside a library that cannot be interrupted.
            os._exit(2)


def _server(address: str) -> socket.socket:
    try:
        family, *_, found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        server = socket.create_server(found[:2], family=family)
    except OSError:  # in some clusters the name of this machine is no address of its own
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
    server.settimeout(_CONNECT)
    return server


def _connect(address: str, where: dict[str, Any], rank: int) -> socket.socket:
    peer = socket.create_connection((address, where["port"]), timeout=_CONNECT)
    peer.sendall(f"{where['key']}{rank:08d}".encode())
    return _kept_alive(peer)


def _accept(server: socket.socket, key: str, size: int) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with server:
        while len(peers) < size - 1:
            peer, _ = server.accept()
            peer.settimeout(_CONNECT)
            message = _receive(peer, len(key) + 8)
            if secrets.compare_digest(message[: len(key)], key.encode()):
                peers[int(message[len(key) :])] = _kept_alive(peer)
            else:
                peer.close()  # not of this group
    return peers


def _receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def _kept_alive(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer
