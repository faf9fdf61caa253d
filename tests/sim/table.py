"""A compacted topic in a run: who puts keyed records and tombstones, who reads all of it, who switches its policy.

Owns the draw of its configs. Always true: every record has an id of its own, in a header, so that tombstones have one
too; a reader that is refused or hears nothing in the middle tells of what it read until then, and begins again. Must
not know faults.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from logformat.record_batch import check_stored
from logformat.records import Codec, Record, encode_batch, iter_records
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER, Producer, Stage, _Pending
from tests.sim.checks.history import Delete, Outcome, Place
from tests.sim.checks.tables import Found, Put, Row, Scan, TableRules, crc_of
from tests.sim.client import EARLIEST, Client, Fetched, ServerError, produce_request
from tests.sim.world import cleaning
from tests.sim.world.clock import EPOCH_MS

TABLE = "table"
PLACE: Place = (TABLE, 0)
ID_HEADER = "id"
NEVER_MS = 86_400_000
SCAN_POLLS_MAX = 400
FINAL_POLLS_MAX = 20_000  # a reader that moves on is not stuck
DIRTY_S = 60.0
"""After the last fault all that is dirty is cleaned within this."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a seed draws of it. `map_bytes` 0: as configured."""

    keys: int
    pace_s: float
    segment_bytes: int
    delete_retention_ms: int
    map_bytes: int
    is_tiered: bool
    is_switched: bool  # its policy, while it runs
    is_retained: bool  # by size, as long as its policy is compact,delete
    lag_max_ms: int
    dirty_ratio: float
    tiered_at_s: float | None  # tiering is switched on at this time

    @property
    def rules(self) -> TableRules:
        stays_s = None if self.delete_retention_ms == NEVER_MS else self.delete_retention_ms / 1000
        return TableRules(stays_s, self.is_retained)

    def configs(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact,delete" if self.is_retained else "compact",
            "internal.segment.bytes": str(self.segment_bytes),
            "min.cleanable.dirty.ratio": str(self.dirty_ratio),
            "delete.retention.ms": str(self.delete_retention_ms),
            "max.compaction.lag.ms": str(self.lag_max_ms),
            "retention.ms": "-1",
            "retention.bytes": "6000" if self.is_retained else "-1",
            "remote.storage.enable": "true" if self.is_tiered else "false",
            **(TIERED if self.is_tiered else {}),
        }


TIERED = {"local.retention.bytes": "4000"}
"""Configs of a tiered table, beside `remote.storage.enable`."""

SETTINGS = (
    "log.cleaner.backoff.ms=300",
    "log.cleaner.dedupe.buffer.size=8388608",
    "log.cleaner.threads=2",
    "thermocline.cold.compaction.grace.ms=3000",
)


def table_of(name: str) -> TableShape:
    """Of the run of this name, drawn apart."""
    rng = SeededRng(f"{name}/table")
    later = SeededRng(f"{name}/table/tiered later")
    return TableShape(
        keys=(4, 12, 30)[rng.randrange(3)],
        pace_s=(0.06, 0.15, 0.4)[rng.randrange(3)],
        segment_bytes=(900, 1800, 5000)[rng.randrange(3)],
        delete_retention_ms=(200, 1000, 5000, NEVER_MS)[rng.randrange(4)],
        map_bytes=(0, 0, 24 * 9)[rng.randrange(3)],
        is_tiered=rng.randrange(4) == 0,
        is_switched=rng.randrange(3) == 0,
        is_retained=rng.randrange(5) == 0,
        lag_max_ms=(1500, 2**63 - 1)[rng.randrange(2)],
        dirty_ratio=(0.0, 0.1, 0.5)[rng.randrange(3)],
        tiered_at_s=later.uniform(2.0, 30.0) if later.randrange(3) == 0 else None,
    )


class _Maker:
    """Records of one client."""

    def __init__(self, stage: Stage, name: str, keys: int) -> None:
        self._stage, self._rng, self._keys = stage, stage.rng(f"{name}/rows"), keys

    def records(self, ids: tuple[str, ...]) -> tuple[list[Record], tuple[Row, ...]]:
        rng = self._rng
        at_ms = EPOCH_MS + int(self._stage.now() * 1000)
        records, rows = [], []
        for number, value_id in enumerate(ids):
            key = b"key%d" % rng.randrange(self._keys)
            value = None if rng.randrange(6) == 0 else value_id.encode() + b" " * rng.randrange(120)
            made_ms = at_ms + rng.randrange(200)
            record = Record(number, made_ms, key, value, ((ID_HEADER, value_id.encode()),))
            records.append(record)
            rows.append(row_of(record))
        return records, tuple(rows)

    def encoded(self, records: list[Record], **more: Any) -> bytes:
        codec = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4)[self._rng.randrange(4)]
        return encode_batch(records, codec=codec, **more)


def row_of(record: Record) -> Row:
    """Its id is in its header; a record without one gets "?"."""
    value_id = next((value or b"" for name, value in record.headers if name == ID_HEADER), b"?").decode()
    crc = crc_of(record.timestamp, record.key, record.value, tuple(record.headers))
    return Row(value_id, record.key or b"", record.value is None, crc)


def found_in(batch: bytes) -> list[Found]:
    """Of a data batch."""
    return [Found(record.offset, row_of(record)) for record in iter_records(batch)]


class IdempotentWriter(Producer):
    """As other producers, but a resend may come to a log that was fetched after its batch was cleaned away."""

    def __init__(self, stage: Stage, name: str, place: Place, shape: TableShape) -> None:
        super().__init__(stage, name, place, shape.pace_s)
        self._maker = _Maker(stage, name, shape.keys)
        self._rows: dict[tuple[str, ...], tuple[Row, ...]] = {}

    def _next_batch(self) -> _Pending:
        count = 1 + self._rng.randrange(5)
        ids = tuple(f"{self._name}.{self._session}.{self._values + i}" for i in range(count))
        self._values += count
        records, self._rows[ids] = self._maker.records(ids)
        producer_id, epoch = self._producer
        data = self._maker.encoded(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=self._sequence)
        batch = _Pending(self._sequence, self._number, ids, data, self._stage.now())
        self._sequence += count
        self._number += 1
        return batch

    def _was_cleaned_before(self, batch: _Pending) -> bool:
        node = next(node for node in self._stage.cluster.nodes if node.name == batch.asked)
        if node.broker is None or node.broker.components.replicas is None:
            return False
        sent = (*self._producer, batch.sequence)
        for held in node.broker.components.replicas._registry:
            if (held.topic, held.index) == self._place:
                log = held.log
                known = cleaning.sent_in(log._locator.segments)
                return cleaning.was_fetched_cleaned(sent, log.directory.path, known, cleaning.vanished)
        return False

    def _record(self, batch: _Pending, outcome: Outcome, offset: int = -1) -> None:
        stage = self._stage
        if outcome is Outcome.OK:
            stage.acked += len(batch.values)
        done_s = stage.cluster.said_s(batch.asked, batch.answered_s) if outcome is Outcome.OK else stage.now()
        stage.told(
            Put(
                f"{self._name}.{self._session}",
                batch.number,
                self._place,
                batch.values,
                batch.invoked_s,
                done_s,
                outcome,
                offset,
                batch.asked,
                stage.in_sync(self._place),
                self._rows.pop(batch.values),
            )
        )


class PlainWriter:
    """acks=all, no producer id, one batch at a time, never sent again: what nobody answered may be there or not."""

    def __init__(self, stage: Stage, name: str, place: Place, shape: TableShape) -> None:
        self._stage, self._name, self._place, self._shape = stage, name, place, shape
        self._rng = stage.rng(name)
        self._client = stage.client(place)
        self._maker = _Maker(stage, name, shape.keys)

    async def run(self) -> None:
        """Until told to stop."""
        stage, number = self._stage, 0
        while not stage.stopping.is_set():
            await asyncio.sleep(self._shape.pace_s * self._rng.uniform(0.5, 3.0))
            ids = tuple(f"{self._name}.{number}.{i}" for i in range(1 + self._rng.randrange(4)))
            records, rows = self._maker.records(ids)
            invoked_s, asked, outcome, offset = stage.now(), "", Outcome.INFO, -1
            try:
                await self._client.connection()
                asked = stage.cluster.node_at(self._client.connected_to)
                request = produce_request(*self._place, self._maker.encoded(records))
                answer = (await self._client.call(ApiKey.PRODUCE, request)).responses[0].partition_responses[0]
                if answer.error_code == ErrorCode.NONE:
                    outcome, offset = Outcome.OK, answer.base_offset
                    stage.acked += len(ids)
                else:
                    stage.answered(ErrorCode(answer.error_code), self._name, answer.error_message)
                    self._client.refused(answer.error_code)
            except NO_ANSWER:
                self._client.drop()
            finally:  # each has a session of its own: without sequences nothing orders what nobody answered
                session, in_sync = f"{self._name}.{number}", stage.in_sync(self._place)
                done_s = stage.cluster.said_s(asked, stage.now()) if outcome is Outcome.OK else stage.now()
                stage.told(Put(session, 0, self._place, ids, invoked_s, done_s, outcome, offset, asked, in_sync, rows))
            number += 1


class TableReader:
    """Reads all of it, from its start to its end, again and again."""

    def __init__(self, stage: Stage, name: str, place: Place) -> None:
        self._stage, self._name, self._place = stage, name, place
        self._rng = stage.rng(name)
        self._client: Client = stage.client(place)

    async def run(self) -> None:
        """Until told to stop."""
        while not self._stage.stopping.is_set():
            await self.scan()
            await asyncio.sleep(self._rng.uniform(0.1, 2.0))

    async def scan(self, *, is_final: bool = False) -> bool:
        """Once; whether it came to the end. What was read goes into the history."""
        stage, place = self._stage, self._place
        invoked_s = stage.now()
        start = end = -1
        found: list[Found] = []
        wrong: list[str] = []
        node = ""
        is_whole = False
        try:
            start = end = await self._client.list_offset(*place, EARLIEST)
            for _ in range(FINAL_POLLS_MAX if is_final else SCAN_POLLS_MAX):
                fetched = await self._client.fetch(*place, end, 1 + self._rng.randrange(4000), 200)
                if fetched.error:
                    raise ServerError(fetched.error, "fetch")
                node = stage.cluster.node_at(self._client.connected_to)
                end = self._take(fetched, end, found, wrong)
                start = max(start, fetched.log_start_offset)
                if end >= fetched.high_watermark:
                    is_whole = True
                    break
        except ServerError as failure:
            stage.answered(failure.code, self._name)
            self._client.refused(failure.code)
        except NO_ANSWER:
            self._client.drop()
        finally:
            if start >= 0 and (is_whole or not is_final):
                is_last = is_final and is_whole
                seen = tuple(row for row in found if row.offset >= start)
                scan = Scan(self._name, place, start, end, invoked_s, stage.now(), seen, node, is_last, tuple(wrong))
                stage.history.add(scan)
        return is_whole

    def _take(self, fetched: Fetched, end: int, found: list[Found], wrong: list[str]) -> int:
        is_first = True  # a filler may have grown around the offset that was asked for
        for header, data in fetched.batches:
            try:
                check_stored(data, 0, len(data), offset_min=0)
            except Exception as broken:  # noqa: BLE001 - whatever it says, it is the finding
                wrong.append(f"{header.base_offset}: a batch that does not check: {broken}")
            if header.base_offset > end or (header.base_offset < end and not is_first) or header.next_offset <= end:
                wrong.append(f"wanted {end}, got [{header.base_offset}, {header.next_offset})")
            is_first = False
            if not header.is_control:
                found += [row for row in found_in(data) if row.offset >= end]
            end = header.next_offset
        if fetched.batches and end > fetched.high_watermark:
            wrong.append(f"{end} was served, the high watermark is {fetched.high_watermark}")
        return end


class TableAdmin:
    """Switches its policy, deletes records of it, and has it tiered later."""

    def __init__(self, stage: Stage, shape: TableShape) -> None:
        self._stage, self._shape = stage, shape
        self._rng = stage.rng("table admin")
        self._client = stage.client()
        self.switched = 0

    async def run(self) -> None:
        """Until told to stop; its policy is its own again then."""
        tiered_at_s = None if self._shape.is_tiered else self._shape.tiered_at_s
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(1.0, 6.0))
            if self._stage.stopping.is_set():
                return
            try:
                if tiered_at_s is not None and self._stage.now() > tiered_at_s:
                    for config, value in (*TIERED.items(), ("remote.storage.enable", "true")):
                        await self._client.set_config(TABLE, config, value)
                    tiered_at_s = None
                    cleaning.hits["cleaning, tiered later"] += 1
                elif self._shape.is_switched and self._rng.randrange(2):
                    policy = ("delete", "compact", "compact,delete")[self._rng.randrange(3)]
                    await self._client.set_config(TABLE, "cleanup.policy", policy)
                    self.switched += 1
                elif self._rng.randrange(4) == 0:
                    await self._delete_records()
            except ServerError as failure:
                if failure.code != ErrorCode.POLICY_VIOLATION:  # DeleteRecords of what is only compacted
                    self._stage.answered(failure.code, "table admin")
            except NO_ANSWER:
                self._client.drop()

    async def _delete_records(self) -> None:
        stage = self._stage
        client = stage.beside(self._client, PLACE)
        start = await client.list_offset(*PLACE, EARLIEST)
        offset = start + self._rng.randrange(12)
        invoked_s, outcome = stage.now(), Outcome.INFO
        try:
            await client.delete_records(*PLACE, offset)
            outcome = Outcome.OK
        finally:
            stage.history.add(Delete(PLACE, offset, invoked_s, stage.now(), outcome))
