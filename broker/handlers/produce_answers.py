"""The bytes of answers to produce requests, packed without a message.

Owns Kafka's ProduceResponse in every version that is served, as one prepared pack for requests of one partition and
piece by piece for others. Always true: byte for byte what the codec says for the same facts (tests compare them). Must
not know how a batch was appended, nor what an error means.

Hot path: one pack an answer, 0.3 µs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker.wire.apis import ApiKey, is_flexible
from broker.wire.primitives import uvarint

_ERRORS_SINCE: Final = 8  # record errors and an error message
_LOG_START_SINCE: Final = 5
ALONE_SINCE: Final = _LOG_START_SINCE  # no client of today sends an older version

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ii")  # size, correlation id
_PREFIX_SIZE: Final = 4
_NO_THROTTLE: Final = bytes(4)
_NO_TAGS: Final = b"\0"
_NULL: Final = (b"\xff\xff", b"\0")  # a string, inflexible and flexible
_OUTCOME: Final = struct.Struct(">hqqq")
_INT64_SIZE: Final = 8


class Outcome(NamedTuple):
    """What became of one batch. Offsets −1 and a `message` where it was refused; `append_time_ms` −1: none."""

    error: int
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    message: str | None = None


_MARKED: Final = Outcome(0x0A55, 0x1122334455667788, 0x2233445566778899, 0x33445566778899AA)
"""What no name of a topic can be mistaken for: it has bytes that are no UTF-8."""


AnswerRow = tuple[str, int, Outcome]
"""One partition of an answer: topic, index, and what became of its batch."""


def answer(version: int, correlation_id: int, rows: Sequence[AnswerRow]) -> bytes:
    """The answer to one request, with its length prefix. Rows of one topic that follow each other are one topic's."""
    flexible = is_flexible(ApiKey.PRODUCE, version)
    body: list[bytes] = []
    topics = first = 0
    while first < len(rows):
        name = rows[first][0]
        last = first
        while last < len(rows) and rows[last][0] == name:
            last += 1
        body += (_string(flexible, name), _count(flexible, last - first))
        body += (_row(version, flexible, row) for row in rows[first:last])
        if flexible:
            body.append(_NO_TAGS)
        topics, first = topics + 1, last
    before = (_NO_TAGS if flexible else b"") + _count(flexible, topics)  # the header's tags
    after = _NO_THROTTLE + (_NO_TAGS if flexible else b"")
    joined = b"".join((before, *body, after))
    return _HEAD.pack(_HEAD.size - _PREFIX_SIZE + len(joined), correlation_id) + joined


class AloneAnswer:
    """Answers to requests for one partition that say where their batches lie, from version ALONE_SINCE on."""

    __slots__ = ("_after", "_before", "_pack", "_row", "_size", "_version")

    def __init__(self, version: int, topic: str, index: int) -> None:
        self._version = version
        self._row = topic, index
        shown = answer(version, 0, ((topic, index, _MARKED),))
        row = _OUTCOME.pack(*_MARKED[:4])
        at = shown.rindex(row)
        self._size = len(shown) - _PREFIX_SIZE
        self._before = shown[_HEAD.size : at]
        self._after = shown[at + len(row) :]
        self._pack = struct.Struct(f">ii{len(self._before)}shqqq{len(self._after)}s").pack

    def one(self, correlation_id: int, outcome: Outcome) -> bytes:
        """The answer to one of them, whatever became of its batch."""
        return answer(self._version, correlation_id, ((*self._row, outcome),))

    def joined(
        self, correlation_ids: Iterable[int], offsets: Iterable[int], append_time_ms: int, log_start_offset: int
    ) -> bytes:
        """The answers to requests whose batches begin at `offsets`."""
        pack, size, before, after = self._pack, self._size, self._before, self._after
        return b"".join(
            [
                pack(size, correlation_id, before, 0, offset, append_time_ms, log_start_offset, after)
                for correlation_id, offset in zip(correlation_ids, offsets, strict=True)
            ]
        )


def _row(version: int, flexible: bool, row: AnswerRow) -> bytes:
    _, index, (error, base_offset, append_time_ms, log_start_offset, message) = row
    fields = [_INT32.pack(index), _OUTCOME.pack(error, base_offset, append_time_ms, log_start_offset)]
    if version < _LOG_START_SINCE:
        fields[1] = fields[1][:-_INT64_SIZE]
    if version >= _ERRORS_SINCE:
        fields.append(_count(flexible, 0))  # no record errors
        fields.append(_NULL[flexible] if message is None else _string(flexible, message))
    if flexible:
        fields.append(_NO_TAGS)
    return b"".join(fields)


def _count(flexible: bool, count: int) -> bytes:
    return uvarint(count + 1) if flexible else _INT32.pack(count)


def _string(flexible: bool, text: str) -> bytes:
    data = text.encode()
    return (uvarint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data
