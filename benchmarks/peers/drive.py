"""A peer's side of a comparison, in a database of its own on the same server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from benchmarks.cluster import BenchCluster, settle_down
from benchmarks.cost import Cost, measured
from benchmarks.figure import Row, Samples
from benchmarks.peers.environment import NoPython
from benchmarks.peers.rivals import PEERS, Peer
from benchmarks.processes import ROOT, WorkerProcess
from benchmarks.work_check import require_peer_each_once, require_peer_recorded

DATABASE = "bench_peer"


def present_peers() -> tuple[list[Peer], list[Row]]:
    """The peers that can be run here, installed; and a line for each that cannot."""
    present, absent = [], []
    for peer in PEERS:
        try:
            peer.python  # noqa: B018
        except NoPython as error:
            absent.append(Row(f"{peer.name}: not measured, {error}", Samples((), "")))
        else:
            present.append(peer)
    return present, absent


def drained(cluster: BenchCluster, peer: Peer, batch: int, count: int) -> Cost:
    """`count` waiting no-op jobs by two workers, `batch` at a time."""
    filled = cluster.template(f"bench_{peer.name}_{count}", lambda dsn: _fill(peer, dsn, count))
    with cluster.database(DATABASE, template=filled) as dsn:
        settle_down(dsn)
        workers = [WorkerProcess(peer.command("worker", dsn, batch), environment={"LEFT": peer.tally}) for _ in range(2)]
        cost, answers = measured(cluster, DATABASE, count, workers)
        require_peer_each_once(dsn, peer, [number for answer in answers for number in answer["handled"]], count)
        return cost


def triggered(cluster: BenchCluster, peer: Peer, count: int) -> Cost:
    """`count` jobs added one by one by one process."""
    empty = cluster.template(f"bench_{peer.name}", lambda dsn: _call(peer.command("setup", dsn)))
    with cluster.database(DATABASE, template=empty) as dsn:
        settle_down(dsn)
        cost, _ = measured(cluster, DATABASE, count, [WorkerProcess(peer.command("trigger", dsn, count))])
        require_peer_recorded(dsn, peer, count)
        return cost


def named(peers: Iterable[Peer]) -> str:
    return ", ".join(f"{peer.name} {peer.version}" for peer in peers)


def _fill(peer: Peer, dsn: str, count: int) -> None:
    _call(peer.command("setup", dsn))
    _call(peer.command("enqueue", dsn, count))


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, cwd=ROOT, timeout=180, stdout=subprocess.DEVNULL)
