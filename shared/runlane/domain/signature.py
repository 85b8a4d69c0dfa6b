"""What a handler's signature says: the payload's type, and whether it wants the context."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

from runlane.domain.shown import shown

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CALL = "a handler is called with (payload) or (payload, ctx)"


class HandlerSignature(NamedTuple):
    payload_type: Any
    is_async: bool
    takes_context: bool


def read_signature(handler: Callable[..., Any], faults: list[str]) -> HandlerSignature:
    """Read a handler; what is wrong is added to `faults`."""
    if not _is_function(handler):
        faults.append(f"handler: {shown(handler)} is not a function; {_CALL}")
        return HandlerSignature(Any, is_async=False, takes_context=False)
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        faults.append("handler: it yields; return the result instead")
    parameters = list(inspect.signature(handler).parameters.values())
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    faults += _parameter_faults(parameters, positional)
    payload_type = _payload_type(handler, positional[0], faults) if positional else Any
    return HandlerSignature(payload_type, inspect.iscoroutinefunction(handler), takes_context=len(positional) > 1)


def _is_function(value: object) -> bool:
    return callable(value) and hasattr(value, "__globals__")


def _parameter_faults(parameters: list[inspect.Parameter], positional: list[inspect.Parameter]) -> list[str]:
    if not positional:
        return [f"handler: it takes no payload; {_CALL}"]
    unfilled = [
        parameter.name
        for parameter in parameters
        if parameter not in positional[:2]
        and parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    return [f"handler: nothing fills its parameter {name!r}; {_CALL}" for name in unfilled]


def _payload_type(handler: Callable[..., Any], parameter: inspect.Parameter, faults: list[str]) -> Any:
    """Resolve the payload's annotation alone: the others may name types that exist for type checkers only."""
    if parameter.annotation is inspect.Parameter.empty:
        faults.append(f"handler: its payload {parameter.name!r} has no annotation; annotate it with the payload's type")
        return Any
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        names = inspect.unwrap(handler).__globals__
        return get_type_hints(alone, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:
        faults.append(
            f"handler: the annotation {parameter.annotation!r} of {parameter.name!r} cannot be resolved ({error}); name a module-level type"
        )
        return Any
