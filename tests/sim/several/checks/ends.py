"""What several brokers come to when nothing breaks them any more.

Owns the conditions of liveness (who leads, which sets are full) and the last reading of every copy. Always true: a copy
is read from the files of the broker that holds it, and judged as if a client had read it there: one log, whoever is
asked; where a log ends was read when its copies are compared with it, not before. Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tests.sim.actors import Reader
from tests.sim.acts import Found
from tests.sim.checks.history import Final, Place, Poll
from tests.sim.checks.tables import COPY, Scan
from tests.sim.client import Fetched
from tests.sim.several.checks.disks import Disks, batches_of
from tests.sim.several.crowd import Crowd
from tests.sim.several.fleet import Fleet, Seat
from tests.sim.table import found_in

COPIES_CATCH_UP_S = 30.0


class Ends:
    """Of one run."""

    def __init__(self, fleet: Fleet, stage: Crowd, places: Sequence[Place]) -> None:
        self._fleet = fleet
        self._stage = stage
        self._places = places
        self._disks = Disks()

    # --- conditions ---
    def not_led(self, without: Seat | None = None) -> Iterator[str]:
        """Brokers that do not serve, partitions that nobody leads as the newest image says. `without`: a broker that
        nobody reaches, for whose partitions another one is to be found where one is in sync."""
        newest = self._fleet.newest()
        for seat in self._fleet.seats:
            if seat is not without and not seat.serving:
                yield f"node {seat.node_id} does not serve"
        led = {
            (partition.topic, partition.index, partition.leader_epoch, node.name.partition("d")[0])
            for node, partition in self._fleet.replicas()
            if partition.leading
        }
        for topic in () if newest is None else newest.image.topics.values():
            for index, row in enumerate(topic.rows):
                if without is not None and (set(row.in_sync) <= {without.node_id}):
                    continue
                is_led = (topic.name, index, row.leader_epoch, f"n{row.leader}") in led
                if not is_led or (without is not None and row.leader == without.node_id):
                    yield f"{topic.name}-{index} is not led: {row}"

    def not_full(self) -> Iterator[str]:
        """In-sync sets that lack replicas, and moves that are not over."""
        newest = self._fleet.newest()
        for topic in () if newest is None else newest.image.topics.values():
            for index, row in enumerate(topic.rows):
                if row.target or set(row.in_sync) != set(row.replicas):
                    yield f"{topic.name}-{index}: {row}{self._why(topic.name, index)}"

    def _why(self, topic: str, index: int) -> str:
        """What copies say of themselves."""
        found = []
        for seat in self._fleet.seats:
            node = seat.node
            replicas = None if node is None or node.dead or node.broker is None else node.broker.components.replicas
            copy = None if replicas is None else replicas._registry.followed.get((topic, index))
            if copy is not None and node is not None:
                found.append(
                    f"; {node.name} is {copy.follower.phase.value} to {copy.follower.end} in epoch {copy.leader_epoch}"
                    f" {copy.failure}"
                )
        return "".join(found)

    # --- every copy, read ---
    async def read_copies(self, found: Found) -> None:
        """Of each partition that was read to its end: every copy holds it to that end, and says so to its readers."""
        finals = {event.place: event for event in self._stage.history.events if isinstance(event, Final)}
        readers: dict[Place, Reader] = {}
        deadline_s = self._stage.now() + COPIES_CATCH_UP_S
        while (lagging := {place for place, _ in self._lags(finals)}) and self._stage.now() < deadline_s:
            await asyncio.sleep(0.1)
            for place in sorted(lagging):
                reader = readers.get(place) or Reader(self._stage, "on", place, again=False)
                readers[place] = reader
                finals[place] = await self._read_on(reader, finals[place])
        for _, said in self._lags(finals):
            found("copy-lags", f"{COPIES_CATCH_UP_S:.0f} s after the last write: {said}")
        for final in finals.values():
            self._read(final)

    async def _read_on(self, reader: Reader, final: Final) -> Final:
        """To where the log ends now: whoever leads after a lost tail declares what was reserved a gap, also long after
        the last write (seed 21126). What was read is not taken back: an end that fell is a copy that lags."""
        ends = await reader.ends()
        if ends is None or ends[1] <= final.end:
            return final
        reader.position = final.end
        return replace(final, end=ends[1]) if await reader.read_to(ends[1], COPIES_CATCH_UP_S) else final

    def _lags(self, finals: dict[Place, Final]) -> Iterator[tuple[Place, str]]:
        """Copies whose high watermark is not the log's end, or whose files end before it."""
        for place, final in finals.items():
            for seat, paths, high_watermark in self._copies(place):
                end = self._disks.log(seat.machine.disk, paths, synced=False).end
                if end != final.end or high_watermark != final.end:
                    said = f"node {seat.node_id} has {place} to {end}, high watermark {high_watermark}, of {final.end}"
                    yield place, said

    def _copies(self, place: Place) -> Iterator[tuple[Seat, list[str], int]]:
        row = self._fleet.row_of(place)
        for seat in self._fleet.seats:
            if row is None or seat.node_id not in row.replicas or seat.node is None or seat.node.broker is None:
                continue
            paths = self._disks.places(seat.machine.disk, seat.directory, synced=False).get(place, [])
            replicas = seat.node.broker.components.replicas
            registry = None if replicas is None or seat.node.dead else replicas._registry
            held = None if registry is None else registry.followed.get(place) or registry.partitions.get(place)
            yield seat, paths, -1 if held is None else held.high_watermark

    async def read_tables(self, found: Found) -> None:
        """Every copy of the compacted topic, cleaned as far as it may be, keeps what its readers are promised."""
        whole = [event for event in self._stage.history.events if isinstance(event, Scan) and event.is_final]
        if not whole:
            return
        place, end = whole[-1].place, whole[-1].end
        deadline_s = self._stage.now() + COPIES_CATCH_UP_S
        while (lags := [mark for _, _, mark in self._copies(place) if mark < end]) and self._stage.now() < deadline_s:
            await asyncio.sleep(0.1)
        if lags:
            found("copy-lags", f"{COPIES_CATCH_UP_S:.0f} s after the last write copies of {place} have {lags} of {end}")
            return
        for seat, paths, _ in self._copies(place):
            raw = batches_of(seat.machine.disk, paths, 0, end)
            rows = [row for header, data in raw if not header.is_control for row in found_in(data)]
            wrong = [
                f"a hole before {after[0]}"
                for before, after in pairwise(raw)
                if before[0].next_offset != after[0].base_offset
            ]
            start = max(whole[-1].start, raw[0][0].base_offset if raw else end)
            now_s, name = self._stage.now(), "" if seat.node is None else seat.node.name
            kept = tuple(row for row in rows if start <= row.offset)
            ends = raw[-1][0].next_offset if raw else end
            scan = Scan(COPY, place, start, ends, now_s, now_s, kept, f"files of {name}", True, tuple(wrong))
            self._stage.history.add(scan)

    def _read(self, final: Final) -> None:
        stage, now_s = self._stage, self._stage.now()
        for seat, paths, high_watermark in self._copies(final.place):
            raw = batches_of(seat.machine.disk, paths, final.start, final.end)
            batches = stage.batches(Fetched(0, high_watermark, 0, raw), final.place)
            if batches:
                at = batches[0].base
                name = "" if seat.node is None else seat.node.name
                start = final.start  # as the last reader was told
                poll = Poll("copy", final.place, at, now_s, now_s, batches, high_watermark, start, f"files of {name}")
                stage.history.add(poll)
