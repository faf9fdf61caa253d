"""Readers of what transactions wrote: `read_committed` as Kafka's consumer filters it, and group offsets.

Owns the filter. Always true: one fetch is one event with all that it let through; a reader that is refused changes
nothing and asks again. Must not know what was committed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from broker.error_codes import ErrorCode
from logformat.record_batch import BatchHeader
from logformat.transaction_marker import marker_of
from tests.sim.actors import NO_ANSWER, Stage
from tests.sim.checks.history import Place
from tests.sim.checks.transactions import GroupLook, Look
from tests.sim.client import EARLIEST, READ_COMMITTED, Client, Fetched, ServerError


def let_through(fetched: Fetched, wrong: Callable[[str], None]) -> list[tuple[BatchHeader, bytes]]:
    """Batches that are not aborted, without control batches: as KafkaConsumer does it, by the list of the answer."""
    coming = sorted(fetched.aborted, key=lambda one: one[1])
    aborted: set[int] = set()
    found = []
    for header, data in fetched.batches:
        while coming and coming[0][1] < header.next_offset:
            aborted.add(coming.pop(0)[0])
        if header.is_control:
            marker = marker_of(data)
            if marker is not None and not marker.is_commit:
                aborted.discard(marker.producer_id)
            elif marker is not None and marker.producer_id in aborted:
                wrong(f"a commit at {header.base_offset} of producer {marker.producer_id}, which is listed as aborted")
        elif not header.is_transactional or header.producer_id not in aborted:
            found.append((header, data))
    return found


class TransactionReader:
    """Of one place; again from the start whenever it reached the end, or on. `is_cold`: whether an offset at a node
    lies below its files."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        place: Place,
        client: Client,
        hits: Counter[str],
        is_cold: Callable[[str, Place, int], bool],
        *,
        is_committed: bool = True,
        again: bool = True,
    ) -> None:
        self._stage, self._name, self._place, self._client = stage, name, place, client
        self._hits, self._is_cold = hits, is_cold
        self._is_committed, self._again = is_committed, again
        self._rng = stage.rng(f"tx reader {name}")
        self.place = place  # as the history has it
        self.told: list[Look] | None = None  # not told yet; None: told at once
        self.position = -1
        self.high_watermark = -1
        self.stable = -1

    async def run(self) -> None:
        """Until told to stop."""
        while not self._stage.stopping.is_set():
            await self.step()
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))

    async def step(self) -> None:
        """One fetch."""
        stage, place = self._stage, self._place
        try:
            if self.position < 0:
                self.position = await self._client.list_offset(*place, EARLIEST)
            invoked_s = stage.now()
            fetched = await self._fetch(1 + self._rng.randrange(8000))
            if fetched.error:
                raise ServerError(fetched.error, "fetch")
        except ServerError as failure:
            stage.answered(failure.code, self._name)
            self._client.refused(failure.code)
            if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.position = -1
            await asyncio.sleep(0.1)
            return
        except NO_ANSWER:
            self._client.drop()
            await asyncio.sleep(0.1)
            return
        self._took(fetched, invoked_s)

    async def _fetch(self, bytes_max: int) -> Fetched:
        isolation = READ_COMMITTED if self._is_committed else 0
        return await self._client.fetch(*self._place, self.position, bytes_max, 200, isolation=isolation)

    def _took(self, fetched: Fetched, invoked_s: float) -> None:
        stage, place = self._stage, self._place

        def wrong(text: str) -> None:
            stage.unexpected.append(f"{place} read by {self._name} at {stage.now():.3f} s: {text}")

        at = self.position
        for header, _ in fetched.batches:
            if header.next_offset <= at or (header.base_offset > at):
                wrong(f"wanted {at}, got [{header.base_offset}, {header.next_offset})")
            at = header.next_offset
        passed = (
            let_through(fetched, wrong)
            if self._is_committed
            else [(header, data) for header, data in fetched.batches if not header.is_control]
        )
        batches = stage.batches(fetched._replace(batches=passed), place)
        node = stage.cluster.copy_at(self._client.connected_to, place)
        if self._is_committed and batches and self._is_cold(node, place, batches[0].base):
            self._hits["txn committed read of the bucket"] += 1
        self._hits["txn reads past aborted ones"] += len(passed) < sum(not h.is_control for h, _ in fetched.batches)
        look = Look(
            self._name,
            self.place,
            self.position,
            at,
            self._is_committed,
            invoked_s,
            stage.now(),
            batches,
            fetched.last_stable,
            fetched.high_watermark,
            node,
            fetched.log_start_offset,
        )
        if self.told is None:
            stage.history.add(look)
        else:
            self.told.append(look)
        self.high_watermark, self.stable = fetched.high_watermark, fetched.last_stable
        if fetched.batches:
            self.position = at
        elif self._again:
            self.position = -1

    async def read_all(self, patience_s: float) -> str:
        """From the start to the high watermark; why it did not come there."""
        deadline_s = self._stage.now() + patience_s
        self.position, self._again = -1, False
        while self._stage.now() < deadline_s:
            await self.step()
            if 0 <= self.high_watermark <= self.position:
                return ""
        return f"stuck at {self.position}, last stable {self.stable}, high watermark {self.high_watermark}"


class GroupOffsets:
    """What the group of a line has, again and again."""

    def __init__(self, stage: Stage, line: str, place: Place, hits: Counter[str]) -> None:
        self._stage, self._line, self._place, self._hits = stage, line, place, hits
        self._rng = stage.rng(f"tx group {line}")
        self._client = stage.client()

    async def run(self) -> None:
        """Until told to stop."""
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(0.3, 2.0))
            await self.step()

    async def step(self, *, is_final: bool = False) -> bool:
        """One look; whether it was answered."""
        stage = self._stage
        try:
            await self._client.find_coordinator(f"g-{self._line}")
            invoked_s = stage.now()
            offset = await self._client.committed_offset(f"g-{self._line}", *self._place, require_stable=True)
        except ServerError as failure:
            if failure.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                self._hits["txn offset not stable yet"] += 1
            else:
                stage.answered(failure.code, self._line)
            return False
        except NO_ANSWER:
            self._client.drop()
            return False
        stage.history.add(GroupLook(self._line, offset, invoked_s, stage.now(), is_final))
        return True
