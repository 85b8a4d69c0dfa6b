"""A payload to try a task with, made from what its handler takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import Any

from pydantic import TypeAdapter

TEXTS = {
    "date": "2030-01-01",
    "date-time": "2030-01-01T12:00:00Z",
    "duration": "PT1M",
    "email": "ada@example.com",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "01900000-0000-7000-8000-000000000000",
}
"""By the `format` of a JSON schema."""
Schema = Mapping[str, Any]


def example_payload(payload_type: Any) -> str | None:
    """JSON text with the required fields that the type takes; None if a plain value does not satisfy it, as with a pattern."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(payload_type)
        schema = adapter.json_schema()
        text = json.dumps(_value(schema, schema.get("$defs", {})), ensure_ascii=False)
        adapter.validate_json(text)
    except Exception:  # Types have validators and schemas of their own making, and an example is worth no failure.
        return None
    return text


def _value(schema: Schema, named: Mapping[str, Schema]) -> Any:
    if "$ref" in schema:
        return _value(named[schema["$ref"].rpartition("/")[2]], named)
    for given in ("examples", "enum"):
        if schema.get(given):
            return schema[given][0]
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _value(schema[choice][0], named)
    return _of_type(schema, named)


def _of_type(schema: Schema, named: Mapping[str, Schema]) -> Any:
    match schema.get("type"):
        case "string":
            return TEXTS.get(schema.get("format", "")) or "example".ljust(schema.get("minLength", 0), "-")[: schema.get("maxLength")]
        case "integer" | "number":
            return _number(schema)
        case "array":
            first = [_value(item, named) for item in schema.get("prefixItems", ())]
            return first + [_value(schema.get("items", {}), named) for _ in range(schema.get("minItems", 0) - len(first))]
        case "boolean":
            return True
        case "null":
            return None
        case _:  # An object, or anything.
            return {name: _value(schema["properties"][name], named) for name in schema.get("required", ())}


def _number(schema: Mapping[str, float]) -> float:
    """1, or what is next to it within the bounds."""
    least = max(schema.get("minimum", -inf), schema.get("exclusiveMinimum", -inf) + 1)
    most = min(schema.get("maximum", inf), schema.get("exclusiveMaximum", inf) - 1)
    return min(max(schema.get("multipleOf", 1), least), most)
