"""CPU of the worker function's cold start, and of a run when it is warm, through AWS's own runtime client.

A cold start: a new process of the client, with the function's folder and the two layers as `make build` makes them on its path, from its
first instruction until it has answered its first event, by which it has connected and settled one run of the shipped application; counted
when the process is ended. Beside it, in turn, a handler that imports psycopg, pydantic and Powertools' Logger from the same layer, connects
and runs `SELECT 1`; the same with a pydantic model of one field, without which pydantic loads the lesser half of itself; and the worker
again with both layers stripped of their bytecode. Python 3.13; for this machine's processor the dependencies are the wheels of the same
pins, as what is shipped is for arm64.

Warm: CPU of the process for events of ten wakeups of no-op runs, triggered ten at a time, everything included that it does for them.

The size is that of the layers as they are shipped.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app import queues, tasks
from benchmarks.artifact import SHIPPED, Artifact, dependencies_for, make_artifact
from benchmarks.catalog import Payload, noop
from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.figure import Row, Samples, Table, require
from benchmarks.lambda_runtime import ExecutionEnvironment, Function
from benchmarks.lane import ENVIRONMENT, MemoryTransport, make_runlane, sqs_events
from benchmarks.work_check import require_each_once
from runlane import Runlane
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.services.lane import Lane
from runlane.services.trigger import Item

PROBES = Path(__file__).with_name("lambda_probe")
QUEUE_URL = "https://sqs.us-east-1.amazonaws.com/000000000000/main"
TEN = 10


def run(cluster: BenchCluster, *, quick: bool) -> Table:
    rounds, batches = (3, 20) if quick else (10, 200)
    with TemporaryDirectory() as folder:
        made = make_artifact(Path(folder, "made"))
        bare = made.without_bytecode(Path(folder, "bare"))
        with cluster.database("bench_cold") as dsn:
            colds = _colds(dsn, made, bare, rounds)
        warm = [_warm(cluster, made, batches) for _ in range(1 if quick else 5)]
        sizes = [zipped(layer) for layer in (dependencies_for(SHIPPED), made.runtime)]
    ours = colds["worker"]
    rows = [
        Row("cold start / importing psycopg, pydantic and Logger, and SELECT 1", ours, colds["probe"], at_most=1.3, tolerance=0.2 * quick),
        Row("cold start / the same with a pydantic model", ours, colds["probe with a model"]),
        Row("cold start / without bytecode", ours, colds["without bytecode"], at_most=0.6),
        Row("warm, a no-op run in a batch of ten", Samples(tuple(warm), "ms"), at_most=0.4),
        Row("both layers, zipped", Samples((sum(sizes) / 1e6,), "MB"), at_most=15),
    ]
    return Table("A cold start in Lambda", __doc__ or "", rows)


def zipped(layer: Path) -> int:
    """Bytes of the layer as `sam deploy` uploads it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(layer.rglob("*")):
            archive.write(path, path.relative_to(layer))
    return len(buffer.getvalue())


def _colds(dsn: str, made: Artifact, bare: Artifact, rounds: int) -> dict[str, Samples]:
    """Milliseconds, in turn; the first round reads files into memory, and does not count."""
    found: dict[str, list[float]] = {}
    transport = MemoryTransport()
    lane = Lane(PostgresStorage(dsn), transport)
    with closing(Runlane(lane=lane, queues=[queues.main], tasks=[tasks.send_receipt], environment=ENVIRONMENT)) as client:
        for number in range(-1, rounds):
            cpu = {
                "worker": _first_run(client, transport, _worker(made, dsn, "app:runlane"), number),
                "probe": _first_answer(_probe(made, dsn, "probe")),
                "probe with a model": _first_answer(_probe(made, dsn, "probe_with_model")),
                "without bytecode": _first_run(client, transport, _worker(bare, dsn, "app:runlane"), number),
            }
            if number >= 0:
                for what, seconds in cpu.items():
                    found.setdefault(what, []).append(seconds * 1000)
    return {what: Samples(tuple(values), "ms") for what, values in found.items()}


def _first_run(client: Runlane, transport: MemoryTransport, worker: Function, number: int) -> float:
    result = client.trigger(tasks.send_receipt, {"invoice_id": f"{number}-{time.time_ns()}", "address": "a@example.com"})
    (event,) = _events(transport)
    environment = ExecutionEnvironment(worker)
    try:
        _require_delivered(environment, event)
    finally:
        cpu = environment.close()
    found = client.runs.get(result.run.run_id)
    require(found.status == "succeeded", f"the run is {found.status}: {environment.output()}")
    return cpu


def _first_answer(probe: Function) -> float:
    environment = ExecutionEnvironment(probe)
    try:
        require(environment.invoke({"number": 1}) == [1], "the probe answers otherwise")
    finally:
        cpu = environment.close()
    return cpu


def _warm(cluster: BenchCluster, made: Artifact, batches: int) -> float:
    """Milliseconds of a run."""
    with cluster.database("bench_warm") as dsn:
        settle_down(dsn)
        transport = MemoryTransport()
        environment = ExecutionEnvironment(_worker(made, dsn, "noop_app:runlane", PROBES))
        try:
            with closing(make_runlane(dsn, transport)) as client:
                before = 0.0
                for batch in range(-TEN, batches):
                    # The first ones import, connect and make plans.
                    if batch == 0:
                        before = environment.cpu()
                    client.trigger_many(noop, [Item(Payload(number=number)) for number in range(TEN)])
                    for event in _events(transport):
                        _require_delivered(environment, event)
                used = environment.cpu() - before
        finally:
            environment.close()
        require_each_once(dsn, (batches + TEN) * TEN)
        return used * 1000 / (batches * TEN)


def _events(transport: MemoryTransport) -> Iterable[Mapping[str, Any]]:
    events = sqs_events(list(transport.bodies), TEN)
    transport.bodies.clear()
    return events


def _require_delivered(environment: ExecutionEnvironment, event: Mapping[str, Any]) -> None:
    answer = environment.invoke(event)
    require(answer == {"batchItemFailures": []}, f"a message failed: {answer} {environment.output()}")


def _worker(artifact: Artifact, dsn: str, app: str, *layers: Path) -> Function:
    variables = {"DATABASE_URL": dsn, "RUNLANE_ENVIRONMENT": ENVIRONMENT, "RUNLANE_QUEUE_URL": QUEUE_URL, "RUNLANE_APP": app}
    return Function(artifact.python, artifact.brought, artifact.code, (*artifact.layers, *layers), "worker.app.handler", variables)


def _probe(artifact: Artifact, dsn: str, module: str) -> Function:
    return Function(
        artifact.python, artifact.brought, artifact.code, (artifact.dependencies, PROBES), f"{module}.handler", {"DATABASE_URL": dsn}
    )
