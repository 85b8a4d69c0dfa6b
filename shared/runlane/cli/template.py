"""`runlane template`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.connect import catalog
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer, write_json
from runlane.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from runlane.adapters.sqs.bindings import MessageGroup

FifoOption = Annotated[
    list[str] | None,
    typer.Option("--fifo", metavar="QUEUE=key|queue|run", help="Keep a queue in order; default: those that the file keeps in order."),
]
StandardOption = Annotated[bool, typer.Option("--no-fifo", help="Keep no queue in order.")]
WriteOption = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="Renew the blocks of this template.", exists=True, dir_okay=False)
]
CheckOption = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="FILE",
        help="Change nothing; exit with 1 if its blocks are not those of the catalog.",
        exists=True,
        dir_okay=False,
    ),
]


def template(
    fifo: FifoOption = None,
    no_fifo: StandardOption = False,
    write: WriteOption = None,
    check: CheckOption = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Print what template.yaml needs for each queue of the catalog: SQS queues, dead letters, mappings, alarms and permissions."""
    if (write and check) or (fifo and no_fifo):
        raise typer.BadParameter("give only one of --write and --check, and of --fifo and --no-fifo")
    from runlane.adapters.cloudformation.blocks import Template, blocks

    queues = catalog(app)
    chosen = _chosen(fifo or [], queues)
    file = write or check
    if file is None:
        made = blocks(queues, chosen)
        if as_json:
            write_json({"queues": queues, "blocks": made})
        else:
            # As it is: a line of it that is broken is another template.
            typer.echo("\n\n".join(f"# {name}\n{text}" for name, text in made.items()))
        return
    read = Template(file.read_text(encoding="utf-8"))
    # A queue that is no longer in the catalog needs no order.
    kept = {name: group for name, group in read.fifo().items() if name in queues}
    renewed = read.renewed(queues, chosen if fifo or no_fifo else kept)
    is_current = renewed == read.text
    if write:
        write.write_text(renewed, encoding="utf-8")
    _say(file, queues, is_current=is_current, is_written=write is not None, as_json=as_json)
    if check and not is_current:
        raise typer.Exit(1)


def _chosen(options: Sequence[str], queues: Sequence[str]) -> dict[str, MessageGroup]:
    from runlane.adapters.cloudformation.blocks import read_fifo, strangers

    try:
        chosen = read_fifo(options)
        ConfigurationError.raise_if(strangers(queues, chosen))
    except ConfigurationError as error:
        raise typer.BadParameter("; ".join(error.faults)) from None
    return chosen


def _say(file: Path, queues: Sequence[str], *, is_current: bool, is_written: bool, as_json: bool) -> None:
    from rich.text import Text

    stale = "is not what the catalog needs; `runlane template --write` renews it"
    said = "is current" if is_current else "renewed" if is_written else stale
    answer({"queues": queues, "is_current": is_current}, as_json, lambda: Text(f"{file}: {said}"))
