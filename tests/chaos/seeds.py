"""Seeds of chaos: `python -m tests.chaos.seeds --seeds 20 --runs 5000`.

Of the wakeups 5 % are lost, 10 % doubled and 10 % late, and a worker process is killed every second. A seed fixes what is triggered and
which faults are drawn; how the processes interleave is the machine's.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from random import Random

from tests.chaos.load import Load, chunks
from tests.chaos.stage import LEASE, TICK, Recoveries, Servers, chaos_stage, check, percentile, recoveries, servers, wait_for_the_end

KILL_EVERY = 1.0
PATIENCE = 600.0


@dataclass(frozen=True)
class Outcome:
    seed: int
    runs: int
    seconds: float
    kills: int
    statuses: dict[str, int]
    recoveries: Recoveries


def play(found: Servers, seed: int, runs: int, patience: float = PATIENCE) -> Outcome:
    """Until everything has ended, and then the checks; `AssertionError` with what is broken."""
    random, began = Random(seed), time.monotonic()
    with chaos_stage(found, seed) as stage:
        stage.start()
        load = Load(stage.runlane, random)
        producing, next_kill = chunks(load, runs), time.monotonic() + KILL_EVERY
        while next(producing, None) is not None or stage.ended() < len(load.triggered):
            load.cancel()
            if time.monotonic() > next_kill:
                stage.kill_worker()
                next_kill += KILL_EVERY
            time.sleep(0.02)
            assert time.monotonic() < began + PATIENCE, (
                f"{stage.ended()} of {runs} runs ended; {(stage.folder / 'log').read_text()[-3000:]}"
            )
        wait_for_the_end(stage, runs, timeout=10)
        seconds = time.monotonic() - began
        return Outcome(
            seed, len(load.triggered), seconds, len(stage.kills), check(stage, load.triggered, load.doomed, load.asked), recoveries(stage)
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--first", type=int, default=1)
    options.add_argument("--runs", type=int, default=5000)
    given = options.parse_args()
    found = Recoveries((), ())
    with servers() as running:
        for seed in range(given.first, given.first + given.seeds):
            one = play(running, seed, given.runs)
            found += one.recoveries
            lost = len(one.recoveries.after_expiry)
            times = f"{one.runs} runs in {one.seconds:.1f} s, {one.kills} kills, {lost} leases recovered"
            print(f"seed {seed}: {times}, {one.statuses}", flush=True)
    text = f"recovered after SIGKILL, lease {LEASE} s, tick {TICK} s: p50 {{:.2f}} s, p99 {{:.2f}} s, longest {{:.2f}} s"
    print(text.format(*(percentile(found.after_kill, share) for share in (0.5, 0.99, 1.0))))


if __name__ == "__main__":
    main()
