"""Plan of `cluster rebalance`: few moves that even out the load of the brokers. Pure.

The steps are, in order: spread over fault domains, level replicas, level hot bytes, level leaders. No step undoes an
earlier step, and a balanced cluster has an empty plan. A leader changes by the order of replicas alone, which copies
nothing. Partitions without leader or with a move in progress stay.

Planning ends because each change lowers one of these values without raising an earlier one: replicas of a partition
that share a fault domain (sum of squares), replicas outside of the band, the sum of squared hot bytes.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from thermocline.cli.cluster.moves.plan import Assignment, Loads, Nodes, Place, Plan, led_by, move_of

SLACK: Final = 0.05
"""Replicas and leaders: a broker may have more or less than the mean by this share, rounded outwards."""
HOT_SLACK: Final = 0.2
HOT_BYTES_MIN: Final = 256 << 20
"""Hot bytes: a broker may have more or less than the mean by this share, or by two segments of 128 MiB if that is
larger.
"""

_STEP_BYTES_MIN: Final = 8 << 20  # a smaller step is not worth a move
_TRIES: Final = 16  # candidates for the replica that is swapped back


class Band(NamedTuple):
    """Loads from `low` to `high` count as even."""

    low: int
    high: int


def band(total: int, brokers: int) -> Band:
    """The band for counts: the mean ± `SLACK`, rounded outwards, e.g. 3 to 4 for 7 replicas on 2 brokers."""
    slack = int(total / brokers * SLACK)
    return Band(total // brokers - slack, -(-total // brokers) + slack)


def rebalance(places: Sequence[Place], partitions: Sequence[Assignment]) -> Plan:
    """The fewest moves that bring every broker in session into its bands, as far as fault domains allow."""
    rows = sorted(partitions, key=lambda held: (held.topic, held.partition))
    state = _State(places, rows)
    if state.loads.active:
        while _stripe(state) or _level_replicas(state) or _level_hot_bytes(state):
            pass
        _level_leaders(state)
    changed = (at for at, held in enumerate(rows) if state.nodes[at] != held.assigned)
    under_way = tuple(held for held in rows if held.target)
    return Plan(tuple(move_of(rows[at], state.nodes[at]) for at in changed), under_way)


class _State:
    """Replicas as planned so far. Partitions are known by their index in `rows`."""

    def __init__(self, places: Sequence[Place], rows: Sequence[Assignment]) -> None:
        self.rows = rows
        self.nodes: list[Nodes] = [held.assigned for held in rows]
        self.loads = Loads(places, rows)
        self.movable = [at for at, held in enumerate(rows) if held.has_leader and not held.target]
        self.on: dict[int, set[int]] = {node: set() for node in self.loads.active}
        for at in self.movable:
            for node in self.nodes[at]:
                if node in self.on:
                    self.on[node].add(at)

    def hot(self, at: int) -> int:
        return self.rows[at].hot_bytes or 0

    def may_move(self, at: int, source: int, to: int) -> bool:
        """Whether the partition stays as spread over fault domains as before, without two replicas on one broker."""
        nodes = self.nodes[at]
        if to in nodes:
            return False
        there, here = self.loads.domains[to], self.loads.domains[source]
        if there == here:
            return True
        crowd = self.loads.spread(nodes)
        return crowd[there] + 1 <= crowd[here]

    def move(self, at: int, source: int, to: int) -> None:
        self.set(at, tuple(to if node == source else node for node in self.nodes[at]))
        self.on[source].discard(at)
        self.on[to].add(at)

    def set(self, at: int, after: Nodes) -> None:
        self.loads.add(self.rows[at], self.nodes[at], -1)
        self.nodes[at] = after
        self.loads.add(self.rows[at], after)


# ── fault domains ────────────────────────────────────────────────────────────────────────────────────────────────────
def _stripe(state: _State) -> bool:
    """Move replicas that share a domain to a domain that has at least two fewer of them."""
    changed = False
    if len(state.loads.in_domain) > 1:
        for at in state.movable:
            while (found := _crowded(state, at)) is not None:
                state.move(at, *found)
                changed = True
    return changed


def _crowded(state: _State, at: int) -> tuple[int, int] | None:
    """A replica of the partition and its new broker; None when it is spread as far as possible."""
    nodes, loads = state.nodes[at], state.loads
    crowd = loads.spread(nodes)
    if max(crowd.values()) < 2:
        return None
    to = loads.idlest(nodes, ())  # in a domain that holds the fewest replicas of the partition
    if to is None:
        return None
    limit = crowd[loads.domains[to]] + 2
    sources = [node for node in nodes if node in state.on and crowd[loads.domains[node]] >= limit]
    if not sources:
        return None
    return max(sources, key=lambda node: (crowd[loads.domains[node]], loads.replicas[node], node)), to


# ── replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _level_replicas(state: _State) -> bool:
    """Move replicas from brokers above the band to those below it, the same share of each topic."""
    counts, active = state.loads.replicas, state.loads.active
    whole = band(sum(counts[node] for node in active), len(active))
    giving: dict[int, list[int]] = {}
    seen: Counter[tuple[int, int]] = Counter()  # (from, to): how many partitions were offered already
    stuck: set[tuple[int, int]] = set()
    changed = False
    while (pair := _uneven(counts, active, whole, stuck)) is not None:
        source, to = pair
        offered = giving.get(source)
        if offered is None:
            offered = giving[source] = _to_give(state, source)
        for place in range(seen[pair], len(offered)):
            at = offered[place]
            if at in state.on[source] and state.may_move(at, source, to):
                state.move(at, source, to)
                seen[pair] = place + 1
                changed = True
                break
        else:
            stuck.add(pair)
    return changed


def _uneven(
    counts: Counter[int], active: list[int], whole: Band, stuck: set[tuple[int, int]]
) -> tuple[int, int] | None:
    """The next two brokers between which a replica moves. One of them is outside of the band, and the move takes no
    broker out of the band.
    """
    up = sorted(active, key=lambda node: (counts[node], node))
    down = sorted(active, key=lambda node: (-counts[node], node))
    if counts[down[0]] <= whole.high and counts[up[0]] >= whole.low:
        return None
    for source in down:
        for to in up:
            if counts[to] + 1 >= counts[source]:
                break
            is_due = counts[source] > whole.high and counts[to] < whole.high
            is_due |= counts[to] < whole.low < counts[source]
            if is_due and (source, to) not in stuck:
                return source, to
    return None


def _to_give(state: _State, source: int) -> list[int]:
    """A broker's partitions in the order in which they are given away. The order takes the same share of each topic, so
    that a topic with many partitions does not hold back the others. Medium hot bytes come first, so that even counts
    mean about even bytes.
    """
    on = state.on[source]
    middle = sum(state.hot(at) for at in on) // max(len(on), 1)
    of_topic: dict[str, list[int]] = {}
    for at in sorted(on, key=lambda at: (abs(state.hot(at) - middle), at)):
        of_topic.setdefault(state.rows[at].topic, []).append(at)
    ranked = [((place + 0.5) / len(found), at) for found in of_topic.values() for place, at in enumerate(found)]
    return [at for _, at in sorted(ranked)]


# ── hot bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _level_hot_bytes(state: _State) -> bool:
    """Let brokers outside of the band swap replicas with others, or give one away if counts stay in their band."""
    loads = state.loads
    mean = sum(loads.hot[node] for node in loads.active) // len(loads.active)
    even = Band(mean - max(int(mean * HOT_SLACK), HOT_BYTES_MIN), mean + max(int(mean * HOT_SLACK), HOT_BYTES_MIN))
    stuck: set[tuple[int, int]] = set()
    changed = False
    while (pair := _hot_and_cool(loads, even, stuck)) is not None:
        if _exchange(state, *pair, even):
            changed, stuck = True, set()
        stuck.add(pair)
    return changed


def _hot_and_cool(loads: Loads, even: Band, stuck: set[tuple[int, int]]) -> tuple[int, int] | None:
    up = sorted(loads.active, key=lambda node: (loads.hot[node], node))
    for source in reversed(up):
        for to in up:
            if _differ(loads, source, to, even) and (source, to) not in stuck:
                return source, to
    return None


def _differ(loads: Loads, source: int, to: int, even: Band) -> bool:
    """Whether one of the two brokers is outside of the band, and their loads differ by more than half of the band."""
    is_outside = loads.hot[source] > even.high or loads.hot[to] < even.low
    return is_outside and loads.hot[source] - loads.hot[to] > (even.high - even.low) // 2


def _exchange(state: _State, source: int, to: int, even: Band) -> bool:
    """Swap the hottest replicas of one broker for the coolest of the other, as few as needed."""
    loads = state.loads
    whole = band(sum(loads.replicas[node] for node in loads.active), len(loads.active))
    back = sorted(state.on[to], key=lambda at: (state.hot(at), at))
    changed = False
    for at in sorted(state.on[source], key=lambda at: (-state.hot(at), at)):
        if not _differ(loads, source, to, even) or state.hot(at) < _STEP_BYTES_MIN:
            break
        if not state.may_move(at, source, to):
            continue
        gap = loads.hot[source] - loads.hot[to]
        may_give = loads.replicas[source] > whole.low and loads.replicas[to] < whole.high
        for other in [None, *back[:_TRIES]] if may_give else back[:_TRIES]:
            step = state.hot(at) - (0 if other is None else state.hot(other))
            if _STEP_BYTES_MIN <= step <= gap - gap // 8 and (other is None or state.may_move(other, to, source)):
                state.move(at, source, to)
                if other is not None:
                    state.move(other, to, source)
                    back.remove(other)
                changed = True
                break
    return changed


# ── leaders ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _level_leaders(state: _State) -> None:
    """Pass leaderships from broker to broker until all are in the band. Each step uses a partition that the next broker
    holds too.
    """
    leads, active = state.loads.leads, state.loads.active
    whole = band(sum(leads[node] for node in active), len(active))
    offers: dict[tuple[int, int], list[int]] = {}  # (leader, other replica): a heap of partitions; may be stale

    def offer(at: int) -> None:
        first, *others = state.nodes[at]
        for node in others:
            heapq.heappush(offers.setdefault((first, node), []), at)

    def next_offer(source: int, to: int) -> int | None:
        heap = offers.get((source, to), [])
        while heap and state.nodes[heap[0]][0] != source:
            heapq.heappop(heap)
        return heap[0] if heap else None

    for at in state.movable:
        offer(at)
    while (path := _leader_path(leads, active, whole, next_offer)) is not None:
        for source, to in pairwise(path):
            handed = next_offer(source, to)
            assert handed is not None
            state.set(handed, led_by(state.nodes[handed], to))
            offer(handed)


def _leader_path(
    leads: Counter[int], active: list[int], whole: Band, next_offer: Callable[[int, int], int | None]
) -> list[int] | None:
    """The shortest path from a broker that leads too many partitions, or could lead fewer, to a broker that leads at
    least two fewer.
    """
    up = sorted(active, key=lambda node: (leads[node], node))
    if leads[up[-1]] <= whole.high and leads[up[0]] >= whole.low:
        return None
    for source in reversed(up):
        ways: dict[int, list[int]] = {source: [source]}
        ahead = deque([source])
        while ahead:
            here = ahead.popleft()
            for to in up:
                if to in ways or next_offer(here, to) is None:
                    continue
                ways[to] = [*ways[here], to]
                ahead.append(to)
                is_due = leads[source] > whole.high and leads[to] < whole.high
                is_due |= leads[to] < whole.low < leads[source]
                if is_due and leads[to] + 1 < leads[source]:
                    return ways[to]
    return None
