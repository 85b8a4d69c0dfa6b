"""The parts of template.yaml that follow from the catalog, between their marks, and how they get there."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runlane.adapters.cloudformation.outputs import outputs
from runlane.adapters.cloudformation.resources import resources
from runlane.adapters.cloudformation.variables import variables
from runlane.adapters.sqs.bindings import MessageGroup
from runlane.domain.errors import ConfigurationError

_BLOCK = re.compile(
    r"(?P<head>^(?P<indent> *)# runlane template: (?P<name>variables|resources|outputs)(?P<options>( --fifo \S+)*)\n)"
    r"(?P<body>.*?)(?P<tail>^ *# runlane template: end$)",
    re.MULTILINE | re.DOTALL,
)
_BLOCKS = ("variables", "resources", "outputs")


@dataclass(frozen=True, slots=True)
class Template:
    """A template's text. Every `# runlane template: NAME` in it begins a block, which the next `# runlane template: end` ends."""

    text: str

    def fifo(self) -> dict[str, MessageGroup]:
        """What the marks say is kept in order: queue to message group."""
        found = _BLOCK.search(self.text)
        return read_fifo(found["options"].split()[1::2] if found else ())

    def faults(self) -> tuple[str, ...]:
        names = [found["name"] for found in _BLOCK.finditer(self.text)]
        return tuple(
            f"template: has {names.count(name)} blocks `# runlane template: {name}` that end in `# runlane template: end`; one is needed"
            for name in _BLOCKS
            if names.count(name) != 1
        )

    def renewed(self, queues: Sequence[str], fifo: Mapping[str, MessageGroup]) -> str:
        """The text with its blocks as these queues need them. `ConfigurationError` when it has no such blocks."""
        if faults := self.faults():
            raise ConfigurationError(faults, code="template_invalid")
        bodies = blocks(queues, fifo)
        options = "".join(f" --fifo {queue}={group}" for queue, group in fifo.items())

        def renew(found: re.Match[str]) -> str:
            indent = found["indent"]
            body = "".join(f"{indent}{line}\n" if line else "\n" for line in bodies[found["name"]].splitlines())
            return f"{indent}# runlane template: {found['name']}{options}\n{body}{found['tail']}"

        return _BLOCK.sub(renew, self.text)


def blocks(queues: Sequence[str], fifo: Mapping[str, MessageGroup]) -> dict[str, str]:
    """The text of every block, not indented."""
    ConfigurationError.raise_if(strangers(queues, fifo))
    return {"variables": variables(queues, fifo), "resources": resources(queues, fifo), "outputs": outputs(queues, fifo)}


def read_fifo(given: Collection[str]) -> dict[str, MessageGroup]:
    """`QUEUE=key`, `QUEUE=queue` or `QUEUE=run`, or only `QUEUE`, which means run. `ConfigurationError` with every fault."""
    found: dict[str, MessageGroup] = {}
    faults = []
    for option in given:
        queue, _, group = option.partition("=")
        if group in ("run", ""):
            found[queue] = "run"
        elif group == "queue":
            found[queue] = "queue"
        elif group == "key":
            found[queue] = "key"
        else:
            faults.append(f"--fifo {option}: keeps nothing in order; give QUEUE=key, QUEUE=queue or QUEUE=run")
    ConfigurationError.raise_if(faults)
    return found


def strangers(queues: Sequence[str], fifo: Mapping[str, MessageGroup]) -> list[str]:
    """What is wrong with the queues that are to be kept in order."""
    having = f"the application has {', '.join(queues) or 'none'}"
    faults = [f"--fifo {name}: is no queue here; {having}" for name in fifo if name not in queues]
    # A mark is a line, and its options are words.
    return faults + [
        f"--fifo {name}: has white space or '=' in its name, which the mark cannot hold" for name in fifo if re.search(r"[\s=]", name)
    ]
