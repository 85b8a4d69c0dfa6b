"""The same, with a model, as whoever imports pydantic has one."""

from __future__ import annotations

from typing import Any

import probe
from pydantic import BaseModel


class Event(BaseModel):
    number: int


def handler(event: dict[str, Any], context: Any) -> Any:
    Event.model_validate(event)
    return probe.handler(event, context)
