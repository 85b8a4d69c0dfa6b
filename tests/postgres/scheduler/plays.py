"""Operations drawn at random, played on the twins, and cut down to the few that make them differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from runlane.domain.queue import Queue, Throttle
from tests.postgres.factories import Lane
from tests.postgres.scheduler.model import Address
from tests.postgres.scheduler.twins import MOMENT, QUEUE, NewItem, Twins

Draws = dict[str, tuple[int, Callable[[Random], dict[str, Any]]]]
"""By operation: its share, and how its arguments are drawn."""


@dataclass(frozen=True)
class Operation:
    name: str
    arguments: dict[str, Any]
    wait: timedelta = MOMENT
    """Before the next one."""


@dataclass(frozen=True)
class Play:
    policy: Queue
    operations: Sequence[Operation]

    def run(self, lane: Lane, now: datetime) -> None:
        """Raises AssertionError where the twins differ."""
        twins = Twins.begin(lane, now, self.policy)
        for operation in self.operations:
            getattr(twins, operation.name)(**operation.arguments)
            twins.compare(operation.wait)

    def difference(self, lane: Lane, now: datetime) -> str | None:
        try:
            self.run(lane, now)
        except AssertionError as difference:
            return str(difference)
        return None

    def __str__(self) -> str:
        return "\n".join([str(self.policy), *map(str, self.operations)])


def draw_play(seed: int, length: int) -> Play:
    rng = Random(seed)
    return Play(_policy(rng), [_draw(rng, _DRAWS, (1, 30, 70)) for _ in range(length)])


def draw_throttled_play(seed: int, length: int) -> Play:
    """The window and `total_limit` bind nowhere: of partitions that come back at one moment, as many as there is room for are taken
    in no certain order.
    """
    rng = Random(seed)
    throttle = Throttle(rng.choice([1, 2, 5]), rng.choice(["1s", "3s", "20s"]), burst=rng.choice([0, 1, 3]))
    policy = Queue(QUEUE, concurrency_limit=rng.choice([None, 1, 2, 4]), dispatch_timeout="40s", throttle=throttle)
    draws = {name: draw for name, draw in _DRAWS.items() if name not in ("settle_and_claim", "set_policy")}
    draws["claim_oldest"] = (3, lambda _: {"limit": 1000})
    return Play(policy, [_draw(rng, draws, (0.3, 0.3, 1, 4, 45)) for _ in range(length)])


def shorten(play: Play, fails: Callable[[Play], bool]) -> Play:
    """Leave out what is not needed for the failure, in pieces that grow smaller."""
    size = len(play.operations)
    while size:
        start = 0
        while start < len(play.operations):
            shorter = Play(play.policy, [*play.operations[:start], *play.operations[start + size :]])
            if fails(shorter):
                play = shorter
            else:
                start += size
        size //= 2
    return play


def _draw(rng: Random, draws: Draws, waits: Sequence[float]) -> Operation:
    (name,) = rng.choices(list(draws), [share for share, _ in draws.values()])
    wait = timedelta(seconds=rng.choice(waits)) if rng.random() < 0.3 else MOMENT
    return Operation(name, draws[name][1](rng), wait)


def _policy(rng: Random) -> Queue:
    return Queue(
        QUEUE,
        concurrency_limit=rng.choice([None, 1, 1, 2, 3]),
        total_limit=rng.choice([None, None, 1, 2, 4, 7]),
        dispatch_window=rng.choice([1, 2, 3, 5, 8, 20]),
        dispatch_timeout="40s",
    )


def _address(rng: Random) -> Address:
    return rng.choice([None, None, "s", "t", "u"]), rng.choice([None, "a", "b", "c"])


def _delay(rng: Random) -> timedelta:
    return timedelta(seconds=rng.choice([0, 0, 0, 0, 1, 30, 90]))


def _items(rng: Random, most: int) -> list[NewItem]:
    return [(_address(rng), rng.choice([0, 0, 0, -60, 60]), _delay(rng)) for _ in range(rng.randint(1, most))]


def _places(rng: Random, most: int = 1) -> list[int]:
    return [rng.randrange(1000) for _ in range(rng.randint(1, most))]


_DRAWS: Draws = {
    "trigger": (8, lambda rng: {"items": _items(rng, rng.choice([1, 1, 8])), "eager": rng.random() < 0.8}),
    "claim": (6, lambda rng: {"chosen": _places(rng, 4), "dispatched": rng.random() < 0.7}),
    "claim_oldest": (3, lambda rng: {"limit": rng.randint(1, 3)}),
    "settle": (6, lambda rng: {"chosen": _places(rng, 3), "delay": rng.choice([None, None, _delay(rng)])}),
    "settle_and_claim": (3, lambda rng: {"chosen": _places(rng)}),
    "hand_back": (1, lambda rng: {"chosen": _places(rng)}),
    "settle_again": (1, lambda rng: {"chosen": _places(rng)}),
    "cancel": (1, lambda rng: {"chosen": _places(rng)}),
    "reschedule": (1, lambda rng: {"chosen": _places(rng), "delay": _delay(rng)}),
    "fold": (1, lambda rng: {}),
    "fire": (2, lambda rng: {}),
    "expire": (1, lambda rng: {}),
    "recover": (1, lambda rng: {}),
    "pause": (1, lambda rng: {"address": _address(rng)}),
    "resume": (2, lambda rng: {"address": _address(rng)}),
    "set_weight": (1, lambda rng: {"name": rng.choice("stab"), "weight": rng.choice([1, 2, 3, 10])}),
    "set_policy": (1, lambda rng: {"policy": _policy(rng)}),
}
