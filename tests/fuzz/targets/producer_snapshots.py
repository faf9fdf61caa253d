"""Both producer snapshots, Kafka's and ours, as they are and with a right CRC: Corrupt, or a state that round-trips.

Input: bit 0 of the first byte: Kafka's; then the file.
"""

from __future__ import annotations

from crc32c import crc32c

from logformat.errors import Corrupt
from logformat.producer_snapshot import (
    BatchRecord,
    ProducerEntry,
    ProducerState,
    decode_kafka_snapshot,
    decode_producer_state,
    encode_kafka_snapshot,
    encode_producer_state,
)

_KAFKA_CRC_AT = 2
_OUR_CRC_AT = 8


def seeds() -> list[bytes]:
    batches = tuple(BatchRecord(5 * n, 5 * n + 4, 105 + 5 * n, 109 + 5 * n, 1_700_000_000_000) for n in range(5))
    producers = (
        ProducerEntry(1, 0, batches, 5),
        ProducerEntry(9, 3, batches[:1], -1, 100, 2),
        ProducerEntry(2**62, 32767, (), 0),
    )
    state = ProducerState(130, producers)
    return [
        b"\x01" + encode_kafka_snapshot(producers),
        b"\0" + encode_producer_state(state),
        b"\0" + encode_producer_state(ProducerState(130, producers[:1])),
        b"\x01" + encode_kafka_snapshot(()),
        b"\0" + encode_producer_state(ProducerState(0, ())),
    ]


def run(data: bytes) -> None:
    kafka, file = data[:1] == b"\x01", data[1:]
    at = _KAFKA_CRC_AT if kafka else _OUR_CRC_AT
    sealed = file[:at] + crc32c(file[at + 4 :]).to_bytes(4, "big") + file[at + 4 :]
    for one in (file, sealed):
        try:
            _kafka(one) if kafka else _ours(one)
        except Corrupt:
            continue


def _kafka(file: bytes) -> None:
    producers = decode_kafka_snapshot(file)
    assert decode_kafka_snapshot(encode_kafka_snapshot(producers)) == producers


def _ours(file: bytes) -> None:
    state = decode_producer_state(file)
    assert encode_producer_state(state) == file
    assert all(batch.last_offset < state.end_offset for entry in state.producers for batch in entry.batches)
