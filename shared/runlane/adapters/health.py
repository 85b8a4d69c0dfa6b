"""Liveness and readiness over HTTP, for whoever keeps containers running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from runlane.domain.errors import ConfigurationError

Probe = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether all is well, and what to show."""


@contextmanager
def health_server(port: int, probes: Mapping[str, Probe]) -> Iterator[int]:
    """Answer `GET` of these paths, 200 or 503, on every interface; the port, which is a free one if 0 was asked for."""
    try:
        server = ThreadingHTTPServer(("", port), _handler(probes))
    except OSError as error:
        raise ConfigurationError(f"health port {port}: cannot be opened ({error.strerror}); give another") from error
    server.daemon_threads = True
    serving = Thread(target=server.serve_forever, name="runlane-health", daemon=True)
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _handler(probes: Mapping[str, Probe]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            probe = probes.get(self.path)
            is_well, facts = probe() if probe is not None else (False, {"paths": sorted(probes)})
            body = json.dumps(facts).encode() + b"\n"
            self.send_response(404 if probe is None else 200 if is_well else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds; nobody wants a line of each."""

    return Handler
