"""A way to Postgres that is cut on demand: as a request arrives, or when its answer has been made and nobody has read it."""

from __future__ import annotations

import socket
from contextlib import suppress
from enum import Enum
from threading import Thread

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_READY = b"Z\0\0\0\5"
"""Begins the last message of an answer; the state of the transaction follows, in one byte. Outside one, all is committed by then."""


class Cut(Enum):
    REQUEST = "request"
    ANSWER = "answer"


class Line:
    def __init__(self, dsn: str) -> None:
        self._server = conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cuts: dict[int, Cut] = {}
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable", gssencmode="disable")
        Thread(target=self._accept, daemon=True).start()

    def cut(self, descriptor: int, what: Cut) -> None:
        """The next request on this connection of ours is the last."""
        with socket.socket(fileno=descriptor) as ours:
            self._cuts[ours.getsockname()[1]] = what
            ours.detach()

    def close(self) -> None:
        # Wakes the thread that accepts, where closing alone would leave it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, (_, port) = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{self._server['host']}/.s.PGSQL.{self._server['port']}")
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                swallowed = list[bytes]()
                Thread(target=self._requests, args=(client, server, port, swallowed), daemon=True).start()
                Thread(target=self._answers, args=(client, server, swallowed), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, port: int, swallowed: list[bytes]) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                cut = self._cuts.pop(port, None)
                if cut is Cut.REQUEST:
                    break
                if cut is Cut.ANSWER:
                    swallowed.append(b"")
                server.sendall(data)
        _hang_up(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, swallowed: list[bytes]) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if not swallowed:
                    client.sendall(data)
                    continue
                swallowed[0] += data
                if swallowed[0][-6:-1] == _READY:
                    break
        _hang_up(client, server)
        client.close()
        server.close()


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
