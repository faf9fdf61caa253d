"""What a log remembers of its idempotent producers, and what it answers to their sequences.

Owns sequences, epochs and the last five batches of each producer id. Always true: a batch is `check`ed before and
`record`ed after it was written, so that memory never runs ahead of the file; a resend of any of the last five batches
gets its original offsets. Time is when a batch came, not its records' timestamps: importing history must not expire
its own producer. Must not know: files, transactions.

Hot path: entries are plain tuples in one dict, so that a snapshot for a roll is one shallow copy (100 000 producers:
about 1 ms) and its encoding happens in a worker. `check` + `record`: about 1 µs a batch.
Source: KIP-98, KIP-360; Kafka's ProducerAppendInfo and ProducerStateEntry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from hotstore.errors import DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence
from logformat.producer_snapshot import BATCHES_MAX, BatchRecord, ProducerEntry, ProducerState
from logformat.record_batch import INT32_MAX, BatchHeader

PRODUCERS_MAX: Final = 250_000  # about 100 MB; above it the ones silent for longest are forgotten
_SEQUENCE_HALF: Final = 1 << 30  # of 2^31 sequences: closer behind is old, further is ahead


class _Producer(NamedTuple):
    epoch: int
    batches: tuple[BatchRecord, ...]  # oldest first, all of `epoch`
    seen_ms: int


class ProducersAt(NamedTuple):
    """All producers as of `end_offset`, frozen: encode it wherever you like, off the loop too."""

    end_offset: int
    entries: dict[int, _Producer]

    def state(self) -> ProducerState:
        return ProducerState(
            self.end_offset,
            tuple(
                ProducerEntry(producer_id, producer.epoch, producer.batches, producer.seen_ms)
                for producer_id, producer in sorted(self.entries.items())
            ),
        )


class Producers:
    """The producers of one log. `expiration_ms`: how long a silent one is remembered."""

    __slots__ = ("_entries", "expiration_ms")

    def __init__(self, expiration_ms: int, entries: Iterable[ProducerEntry] = ()) -> None:
        self.expiration_ms = expiration_ms
        self._entries: dict[int, _Producer] = {
            entry.producer_id: _Producer(entry.epoch, entry.batches, entry.last_timestamp) for entry in entries
        }

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, header: BatchHeader, now_ms: int) -> BatchRecord | None:
        """None: append it. A BatchRecord: it is a resend, answer these offsets and append nothing.

        Batches without a producer id (−1) never come here. Raises InvalidProducerEpoch, OutOfOrderSequence, or
        DuplicateSequence for a resend that is older than what is remembered.
        """
        producer = self._entries.get(header.producer_id)
        if producer is None:
            return None
        epoch, batches, seen_ms = producer
        first = header.base_sequence
        if header.producer_epoch == epoch:
            last = batches[-1][1] if batches else -1
            if first == (last + 1) & INT32_MAX:
                return None
            if now_ms - seen_ms > self.expiration_ms:
                return None
            return _resent(header, batches)
        if now_ms - seen_ms > self.expiration_ms:
            return None
        if header.producer_epoch < epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} epoch {header.producer_epoch} superseded by {epoch}; "
                "ask for a new producer id or epoch"
            )
        if first != 0:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} at sequence {first}, not 0"
            )
        return None

    def check_all(self, headers: Sequence[BatchHeader], now_ms: int) -> tuple[BatchRecord, BatchRecord] | None:
        """`check` for several batches of one append, each after the ones before it.

        None: append them all. Otherwise all are resends: the first and the last one's record. An append that mixes
        resends with new batches is refused (OutOfOrderSequence): clients resend a request as it was.
        """
        trial = Producers(self.expiration_ms)
        trial._entries = {h.producer_id: p for h in headers if (p := self._entries.get(h.producer_id)) is not None}
        known: list[BatchRecord] = []
        for header in headers:
            if header.producer_id < 0:
                continue
            if (record := trial.check(header, now_ms)) is not None:
                known.append(record)
            else:
                trial.record(header, 0, now_ms)
        if not known:
            return None
        if len(known) < len(headers):
            raise OutOfOrderSequence(
                f"{len(known)} of {len(headers)} batches of one append are resends: resend requests as they were"
            )
        return known[0], known[-1]

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was written at `base_offset`. Also how recovery replays a log: nothing is refused."""
        producer_id = header.producer_id
        first = header.base_sequence
        delta = header.last_offset_delta
        batch = BatchRecord(first, (first + delta) & INT32_MAX, base_offset, base_offset + delta, now_ms)
        producer = self._entries.get(producer_id)
        if producer is None:
            if len(self._entries) >= PRODUCERS_MAX:
                self._forget_oldest()
            batches: tuple[BatchRecord, ...] = (batch,)
        elif producer[0] != header.producer_epoch:
            batches = (batch,)
        else:
            batches = producer[1]
            batches = (*batches[1:], batch) if len(batches) >= BATCHES_MAX else (*batches, batch)
        self._entries[producer_id] = _Producer(header.producer_epoch, batches, now_ms)

    def expire(self, now_ms: int) -> int:
        """Forget producers silent for longer than `expiration_ms`; how many."""
        oldest = now_ms - self.expiration_ms
        expired = [producer_id for producer_id, producer in self._entries.items() if producer[2] < oldest]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def at(self, end_offset: int) -> ProducersAt:
        """A frozen copy, for a snapshot at `end_offset`."""
        return ProducersAt(end_offset, self._entries.copy())

    def _forget_oldest(self) -> None:
        """Make room by a tenth, so that the sort is paid for once in 25 000 new producers."""
        by_age = sorted(self._entries, key=lambda producer_id: self._entries[producer_id].seen_ms)
        for producer_id in by_age[: PRODUCERS_MAX // 10]:
            del self._entries[producer_id]


def _resent(header: BatchHeader, batches: tuple[BatchRecord, ...]) -> BatchRecord:
    """The record of a batch that is not next in sequence but known; raises where it is unknown."""
    first = header.base_sequence
    last = (first + header.last_offset_delta) & INT32_MAX
    for batch in batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    newest = batches[-1].last_sequence if batches else -1
    if batches and 0 < (batches[0].first_sequence - last) & INT32_MAX < _SEQUENCE_HALF:
        raise DuplicateSequence(
            f"producer {header.producer_id} resent sequences {first}..{last}, remembered are only "
            f"{batches[0].first_sequence}..{newest}: it is in the log, its offset is not known any more"
        )
    raise OutOfOrderSequence(
        f"producer {header.producer_id} sent sequences {first}..{last}, expected {(newest + 1) & INT32_MAX}"
    )
