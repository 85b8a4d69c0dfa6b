"""Coverage-guided fuzzing of the parsers: `make fuzz SECONDS=60`. The first byte of an input names the parser, and the rest is its text."""

from __future__ import annotations

import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["runlane", "cronsim"]):
    from tests.hostile.parsers import PARSERS, feed

_NAMES = list(PARSERS)


def one(data: bytes) -> None:
    if data:
        feed(_NAMES[data[0] % len(_NAMES)], data[1:].decode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    # What it finds worth keeping goes to a folder of its own; what it fails on is written where it was started.
    folder = tempfile.mkdtemp(prefix="runlane-fuzz-")
    limits = [f"-max_total_time={sys.argv[1]}", "-timeout=2", "-max_len=4096", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, folder, "tests/hostile/corpus"], one)
    atheris.Fuzz()
