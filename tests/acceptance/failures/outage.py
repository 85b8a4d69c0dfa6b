"""A door to a server that can be shut: connections are cut and new ones refused, as in an outage."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit


class Door:
    """Open while it is entered; keeps its port when it is shut and opened again."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._port = 0

    def __enter__(self) -> Door:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._ends.append(listener)
        self._start(self._accept, listener)

    def shut(self) -> None:
        """Every connection through it ends now."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for end in ends:
            end.close()
        self._threads.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                inner = listener.accept()[0]
                self._ends.append(inner)
                outer = socket.create_connection(self._target)
                self._ends.append(outer)
                self._start(_pump, inner, outer)
                self._start(_pump, outer, inner)

    def _start(self, target: object, *ends: socket.socket) -> None:
        assert callable(target)
        self._threads.append(threading.Thread(target=target, args=ends, daemon=True))
        self._threads[-1].start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
