"""Every state that the model can reach, each once, whatever its processes, partitions and runs are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.postgres.protocol.model import Bug, Kind, Partition, Rules, Run, Step, alike, broken, grant, steps

_BITS = 24
_LOW = (1 << _BITS) - 1
RELIED_UPON = frozenset({Kind.WORK, Kind.TICK})


class Fault(NamedTuple):
    """A promise that is broken, and the actions that lead there."""

    promise: str
    path: tuple[str, ...]


class Found(NamedTuple):
    """`actions`: how many transitions each action made. `fault`: the first that was met; then the rest is not explored."""

    states: int
    transitions: int
    actions: Counter[str]
    fault: Fault | None


class _Edge(NamedTuple):
    after: int
    processes: int
    mistaken: int
    late: int
    grants: bool
    kinds: frozenset[Kind]
    action: str
    broken: str | None


class Explorer:
    """States are pairs of partitions, each a number; what can happen in a partition is found out once.

    `kinds`: what may happen. With all, accidents and repair; with WORK and CHOICE alone, a world in which nothing fails and nobody ticks.
    """

    def __init__(self, rules: Rules, sizes: tuple[int, int] = (2, 2), kinds: frozenset[Kind] = frozenset(Kind)) -> None:
        self._rules = rules
        self._kinds = kinds
        self._alike = sizes[0] == sizes[1]
        self._start = tuple(Partition((Run(),) * size) for size in sizes)
        self._numbers: dict[Partition, int] = {}
        self._partitions: list[Partition] = []
        self._edges: dict[int, list[_Edge]] = {}
        self._parents: dict[int, tuple[int, str]] = {}
        self._seen: list[int] = []

    def explore(self) -> Found:
        """All reachable states; then whether all runs can end from each of them by what may be relied upon."""
        first = self._key(*(self._number(partition) for partition in self._start))
        self._parents[first] = (first, "")
        self._seen = [first]
        taken: Counter[str] = Counter()
        for state in self._seen:
            for action, after, promise in self._next(state):
                taken[action] += 1
                if promise is not None:
                    return self._found(taken, Fault(promise, (*self._path(state), action)))
                if after not in self._parents:
                    self._parents[after] = (state, action)
                    self._seen.append(after)
        stuck = self._stuck()
        return self._found(taken, None if stuck is None else Fault("from every state all runs can end", self._path(stuck)))

    def _found(self, taken: Counter[str], fault: Fault | None) -> Found:
        return Found(len(self._seen), taken.total(), taken, fault)

    def _number(self, partition: Partition) -> int:
        number = self._numbers.setdefault(partition, len(self._numbers))
        if number == len(self._partitions):
            self._partitions.append(partition)
        return number

    def _key(self, one: int, other: int) -> int:
        return other << _BITS | one if self._alike and other < one else one << _BITS | other

    def _next(self, state: int, relied: bool = False) -> Iterator[tuple[str, int, str | None]]:
        one, other = state >> _BITS, state & _LOW
        yield from self._moves(one, other, relied, first=True)
        if one != other or not self._alike:
            yield from self._moves(other, one, relied, first=False)

    def _moves(self, moving: int, still: int, relied: bool, *, first: bool) -> Iterator[tuple[str, int, str | None]]:
        rules, beside = self._rules, self._partitions[still]
        free, late, mistaken = rules.workers - beside.processes, rules.late_marks - beside.late, rules.most_mistaken - beside.mistaken
        for edge in self._edges.get(moving) or self._found_out(moving):
            if edge.processes > free or edge.mistaken > mistaken or edge.late > late or (relied and edge.kinds.isdisjoint(RELIED_UPON)):
                continue
            if rules.total_limit is None:
                yield edge.action, self._key(edge.after, still) if first else self._key(still, edge.after), edge.broken
            else:
                for after, rest in self._given(edge, still):
                    pair = (after, rest) if first else (rest, after)
                    yield edge.action, self._key(*pair), edge.broken or self._broken_together(*pair)

    def _found_out(self, number: int) -> list[_Edge]:
        """What can happen in one partition, once for each state that it leads to."""
        found: dict[tuple[int, bool, str | None], _Edge] = {}
        for step in steps(self._partitions[number], self._rules):
            if step.kind in self._kinds:
                edge = self._edge(step)
                same = found.get(edge_key := (edge.after, edge.grants, edge.broken))
                found[edge_key] = edge if same is None else same._replace(kinds=same.kinds | edge.kinds)
        self._edges[number] = list(found.values())
        return self._edges[number]

    def _edge(self, step: Step) -> _Edge:
        after, rules = step.after, self._rules
        promise = step.broken
        if rules.total_limit is None:
            while step.grants and (given := grant(after, rules)) is not None:
                after = given
            promise = promise or broken(after, rules) or _unused(after, rules)
        after = after if rules.bug is Bug.CANCELLED_GETS_SLOT else alike(after)
        promise = promise or broken(after, rules)
        kinds = frozenset({step.kind})
        return _Edge(self._number(after), after.processes, after.mistaken, after.late, step.grants, kinds, step.action, promise)

    def _given(self, edge: _Edge, still: int) -> Iterator[tuple[int, int]]:
        """Free slots of the queue go to either partition, as the fair order has it, which is not modelled."""
        rules, pending = self._rules, [(edge.after, still)]
        while pending:
            pair = one, other = pending.pop()
            left, right = self._partitions[one], self._partitions[other]
            granted = []
            if edge.grants and rules.total_limit is not None and left.occupied + right.occupied < rules.total_limit:
                granted = [(self._number(given), other) for given in [grant(left, rules)] if given is not None]
                granted += [(one, self._number(given)) for given in [grant(right, rules)] if given is not None]
            pending += granted
            if not granted:
                yield pair

    def _broken_together(self, one: int, other: int) -> str | None:
        left, right, limit = self._partitions[one], self._partitions[other], self._rules.total_limit
        if limit is None:
            return None
        if left.slots + right.slots > limit:
            return "a limit is a limit"
        promise = broken(left, self._rules) or broken(right, self._rules)
        if promise is None and left.occupied + right.occupied < limit:
            return _unused(left, self._rules) or _unused(right, self._rules)
        return promise

    def _path(self, state: int) -> tuple[str, ...]:
        path: list[str] = []
        while self._parents[state][1]:
            state, action = self._parents[state]
            path.append(action)
        return tuple(reversed(path))

    def _stuck(self) -> int | None:
        """A state from which nothing that may be relied upon leads to where all runs have ended.

        That something leads there from everywhere is what fairness needs: whoever can always get there does not stay away for ever.
        """
        before: dict[int, list[int]] = {}
        for state in self._seen:
            for _, after, _ in self._next(state, relied=True):
                before.setdefault(after, []).append(state)
        reached = [state for state in self._seen if self._has_ended(state)]
        good = set(reached)
        for state in reached:
            fresh = [earlier for earlier in before.get(state, ()) if earlier not in good]
            good.update(fresh)
            reached += fresh
        return next((state for state in self._seen if state not in good), None)

    def _has_ended(self, state: int) -> bool:
        return self._partitions[state >> _BITS].has_ended and self._partitions[state & _LOW].has_ended


def _unused(partition: Partition, rules: Rules) -> str | None:
    return None if grant(partition, rules) is None else "free capacity is used at once"
