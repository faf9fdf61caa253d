"""Who reads the bucket alone: plans on one version of the manifests, waits, and reads the splits in pieces.

Owns their acts. Always true: what they read of transactions is a `Look`, of the compacted topic a `Scan`, of other
topics `Rows`; a loss is expected only of offsets below the log start. Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from coldstore.object_store import StoreError
from logformat.errors import Corrupt, InvalidRequest
from logformat.records import Record
from tests.sim.actors import Stage
from tests.sim.checks.history import Batch, Place
from tests.sim.checks.tables import Found, Scan
from tests.sim.checks.transactions import Look
from tests.sim.lake.store import arrow_store
from tests.sim.table import TABLE, row_of
from thermocline.pipeline.arrow_store import ArrowStore
from thermocline.pipeline.history import History
from thermocline.pipeline.scan import scan
from thermocline.pipeline.split import DataLoss, Loss, Split

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
WAITS_S = (0.0, 0.0, 0.0, 0.0, 0.05, 0.3, 4.0, 9.0)


@dataclass(frozen=True, slots=True)
class Rows:
    """[`start`, `end`) of a topic without transactions, as the bucket showed it. `values`: by offset."""

    place: Place
    start: int
    end: int
    invoked_s: float
    done_s: float
    values: tuple[tuple[int, str], ...]


class LakeReader:
    """Of all `places`, one after the other, as drawn."""

    def __init__(
        self, stage: Stage, name: str, places: list[Place], of_transactions: list[Place], hits: Counter[str]
    ) -> None:
        self._stage, self._name, self._places, self._hits = stage, name, places, hits
        self._of_transactions = frozenset(of_transactions)
        self._rng = stage.rng(name)
        cluster = stage.cluster
        self._store: ArrowStore = arrow_store(cluster.store._inner, encrypts=cluster.encrypts)  # type: ignore[arg-type]
        self._count = 0
        self._pauses_left = 0

    async def run(self) -> None:
        """Until told to stop."""
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(0.02, 0.5))
            await self.step()

    async def step(self) -> None:
        place = self._places[self._rng.randrange(len(self._places))]
        try:
            await self._read(place)
        except DataLoss as loss:
            text = str(loss)
            if "expired while reading" in text or "the log starts at" in text or "was deleted" in text:
                self._hits["lake: expired"] += 1
            elif "no manifest in the bucket" in text or "topic was deleted" in text:
                self._hits["lake: topic gone"] += 1
            else:
                self._stage.unexpected.append(f"{place} read by {self._name} at {self._stage.now():.3f} s: {text}")
        except (InvalidRequest, StoreError) as refused:
            self._hits[f"lake: {type(refused).__name__}"] += 1
        except Corrupt as broken:
            self._stage.unexpected.append(f"{place} read by {self._name} at {self._stage.now():.3f} s: {broken!r}")

    async def _pause(self) -> None:
        wait_s = WAITS_S[self._rng.randrange(len(WAITS_S))]
        if wait_s and self._pauses_left:
            self._pauses_left -= 1
            await asyncio.sleep(wait_s * self._rng.uniform(0.0, 1.0))

    async def _read(self, place: Place) -> None:
        rng, stage = self._rng, self._stage
        self._pauses_left = 3
        is_committed = place not in self._of_transactions or rng.randrange(4) != 0
        history = History(self._store)
        try:
            invoked_s = stage.now()
            if not stage.cluster.store._inner.objects.get("cluster.json"):  # type: ignore[attr-defined]
                return
            part = history.partition(*place)
            await self._pause_rarely()
            start, end = part.log_start, part.remote_end
            if start >= end:
                return
            if rng.randrange(3) == 0:
                start += rng.randrange(end - start)
            if rng.randrange(3) == 0:
                end = start + 1 + rng.randrange(end - start)
            splits = history.plan(
                {place: (start, end)},
                parts={place: part},
                target_bytes=(500, 3000, 1 << 20)[rng.randrange(3)],
                max_records=(None, None, 7)[rng.randrange(3)] if end - start < 2000 else None,
            )
            stable, log_start = part.remote_end, part.log_start
        finally:
            history.close()
        self._count += 1
        self._hits["lake: reads"] += 1
        rows: list[pa.RecordBatch] = []
        at = start
        for split in splits:
            await self._pause()
            async for batch in self._rows(split, is_committed):
                rows.append(batch)
            assert split.rows.start_offset == at, (split.rows, at)
            at = split.rows.end_offset
        assert at == end or not splits
        self._told(place, start, end, invoked_s, is_committed, rows, stable, log_start)

    async def _pause_rarely(self) -> None:
        if self._rng.randrange(3) == 0:
            await self._pause()

    async def _rows(self, split: Split, is_committed: bool) -> AsyncIterator[pa.RecordBatch]:
        rng = self._rng
        found = scan(
            self._store,
            split,
            COLUMNS,
            loss=Loss(),
            read_committed=is_committed,
            target_bytes=(200, 2000, 1 << 20)[rng.randrange(3)],
            window_bytes=(300, 1500, 1 << 20)[rng.randrange(3)],
            prefetch=0,
        )
        for batch in found:
            yield batch
            await self._pause()

    def _told(
        self,
        place: Place,
        start: int,
        end: int,
        invoked_s: float,
        is_committed: bool,
        batches: list[pa.RecordBatch],
        stable: int,
        log_start: int,
    ) -> None:
        stage, rows = self._stage, [row for batch in batches for row in batch.to_pylist()]
        done_s = stage.now()
        offsets = [row["offset"] for row in rows]
        if offsets != sorted(set(offsets)) or any(not start <= offset < end for offset in offsets):
            stage.unexpected.append(f"{place} [{start}, {end}) read by {self._name} until {done_s:.3f} s: {offsets}")
        values = tuple((row["offset"], ((row["value"] or b"").split(b" ", 1)[0]).decode()) for row in rows)
        self._hits["lake: rows"] += len(rows)
        if place in self._of_transactions:
            parts = tuple(Batch(offset, offset + 1, "", (value,)) for offset, value in values)
            name = f"{self._name}.{self._count}"
            stage.history.add(
                Look(
                    self._name,
                    place,
                    start,
                    end,
                    is_committed,
                    invoked_s,
                    done_s,
                    parts,
                    stable,
                    stable,
                    name,
                    log_start,
                )  # type: ignore[arg-type]
            )
        elif place[0] == TABLE:
            found = tuple(Found(row["offset"], row_of(_record(row))) for row in rows)
            if start == log_start:
                stage.history.add(Scan(self._name, place, start, end, invoked_s, done_s, found, "lake"))  # type: ignore[arg-type]
        else:
            stage.history.add(Rows(place, start, end, invoked_s, done_s, values))  # type: ignore[arg-type]


def _record(row: dict[str, Any]) -> Record:
    at = row["timestamp"]
    ms = int(at.timestamp() * 1000 + 0.5)
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return Record(row["offset"], ms, row["key"], row["value"], headers)
