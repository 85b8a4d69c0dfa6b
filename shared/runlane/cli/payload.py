"""Payloads as the command line takes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from runlane.domain.errors import ContractError


def read_payload(text: str) -> Any:
    """JSON; of a file with @FILE, of the standard input with -. `ContractError` `payload_unreadable`."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise ContractError("payload_unreadable", f"PAYLOAD: {text[1:]} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ContractError("payload_unreadable", "PAYLOAD: is nested too deeply; flatten it") from error
    except ValueError as error:
        raise ContractError("payload_unreadable", f"PAYLOAD: is not JSON: {error}; quote it for the shell, or give @FILE") from error
