"""`runlane template`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runlane.cli.connect import catalog
from runlane.cli.options import AppPath, AsJson
from runlane.cli.output import answer

FifoOption = Annotated[
    list[str] | None,
    typer.Option("--fifo", metavar="QUEUE=key|queue|run", help="Keep a queue in order; default: those that the file keeps in order."),
]
WriteOption = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Renew the blocks of this template.", dir_okay=False)]
CheckOption = Annotated[
    Path | None,
    typer.Option("--check", metavar="FILE", help="Change nothing; exit with 1 if its blocks are not those of the catalog.", dir_okay=False),
]
StandardOption = Annotated[bool, typer.Option("--no-fifo", help="Keep no queue in order.")]


def template(
    fifo: FifoOption = None,
    no_fifo: StandardOption = False,
    write: WriteOption = None,
    check: CheckOption = None,
    app: AppPath = None,
    as_json: AsJson = False,
) -> None:
    """Print what template.yaml needs for each queue of the catalog: SQS queues, dead letters, mappings, alarms and permissions."""
    from rich.text import Text

    from runlane.adapters.cloudformation.blocks import Template, blocks, read_fifo

    queues = catalog(app)
    file = write or check
    read = Template(file.read_text(encoding="utf-8")) if file else None
    ordered = read_fifo(fifo) if fifo else {} if no_fifo or read is None else read.fifo()
    if file is None or read is None:
        made = blocks(queues, ordered)
        answer({"queues": queues, "blocks": made}, as_json, lambda: Text("\n\n".join(f"# {name}\n{text}" for name, text in made.items())))
        return
    # A queue that is no longer in the catalog needs no order.
    renewed = read.renewed(queues, ordered if fifo else {name: group for name, group in ordered.items() if name in queues})
    is_current = renewed == read.text
    if write:
        write.write_text(renewed, encoding="utf-8")
    said = "is current" if is_current else "renewed" if write else "is not what the catalog needs; `runlane template --write` renews it"
    answer({"queues": queues, "is_current": is_current}, as_json, lambda: Text(f"{file}: {said}"))
    if check and not is_current:
        raise typer.Exit(1)
