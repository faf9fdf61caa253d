"""Off-by-one bugs put into parsers while they are fuzzed: the only proof that the targets can see one.

A plant changes one comparison of one function in memory (its bytecode, so that everybody who imported it meets it) and
is taken back afterwards. `python -m tests.fuzz --planted` counts the executions until each is found.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, FunctionType


@dataclass(frozen=True)
class Plant:
    """In `function` of `module`, `right` stands exactly once; with `wrong` instead, `target` must find it."""

    name: str
    target: str
    module: str
    function: str
    right: str
    wrong: str


PLANTS = (
    Plant(
        "an index lookup misses its own entry",
        "indexes",
        "logformat.indexes.offset_index",
        "OffsetIndex.lookup",
        "bisect_right(self._offsets, target - self.base_offset)",
        "bisect_right(self._offsets, target - self.base_offset - 1)",
    ),
    Plant(
        "a look-up by time misses its own entry",
        "indexes",
        "logformat.indexes.time_index",
        "TimeIndex.lookup",
        "bisect_right(self._timestamps, timestamp)",
        "bisect_left(self._timestamps, timestamp)",
    ),
    Plant(
        "a frame is handed out one byte early",
        "frame_split",
        "broker.net.frames",
        "FrameReader.next",
        "if left < size:",
        "if left < size - 1:",
    ),
    Plant(
        "a frame of no bytes is taken",
        "frame_split",
        "broker.net.frames",
        "FrameReader.next",
        "if not 0 < size <= self._frame_bytes_max:",
        "if not 0 <= size <= self._frame_bytes_max:",
    ),
    Plant(
        "a client id may reach one byte beyond the frame",
        "request_header",
        "broker.wire.framing",
        "parse_request_header",
        "if offset > len(frame):",
        "if offset > len(frame) + 1:",
    ),
    Plant(
        "the first epoch of a lineage has no offsets",
        "leader_epochs",
        "logformat.leader_epochs",
        "LeaderEpochs.epoch_for",
        "return self.entries[slot].epoch if slot >= 0 else None",
        "return self.entries[slot].epoch if slot > 0 else None",
    ),
    Plant(
        "a checkpoint holds an offset of 2^63",
        "offset_checkpoints",
        "logformat.checkpoint_text",
        "parse_integer",
        "int(text) > maximum:",
        "int(text) > maximum + 1:",
    ),
    Plant(
        "a producer's batch ends at the snapshot's own offset",
        "producer_snapshots",
        "logformat.producer_snapshot",
        "_possible",
        "batch.last_offset < end_offset",
        "batch.last_offset <= end_offset",
    ),
    Plant(
        "a decompressed batch may exceed its cap by one",
        "decompress",
        "logformat.compression",
        "_decompressed",
        "if len(out) > cap:",
        "if len(out) > cap + 1:",
    ),
    Plant(
        "a produced batch may skip an offset delta",
        "records",
        "logformat.record_check",
        "check_records",
        "if delta != index:",
        "if not 0 <= delta - index <= 1:",
    ),
    Plant(
        "a copied batch may claim a record too many",
        "segment_scan",
        "coldstore.segments.segment_scanner",
        "SegmentScanner._walk",
        "0 <= count <= delta + 1",
        "0 <= count <= delta + 2",
    ),
    Plant(
        "an epoch of 2^31 is taken for a key of ours",
        "object_keys",
        "coldstore.keys",
        "_int32",
        "value <= INT32_MAX",
        "value <= INT32_MAX + 1",
    ),
    Plant(
        "a record whose header ends in a small piece is one byte longer",
        "tls_records",
        "broker.net.tls.records",
        "Records.take",
        "self._left = length",
        "self._left = length + (len(data) < _HEADER.size)",
    ),
)


def named(name: str) -> Plant:
    return next(plant for plant in PLANTS if plant.name == name)


@contextlib.contextmanager
def planted(plant: Plant) -> Iterator[FunctionType]:
    """The function, wrong while the block runs. AssertionError when its source has moved on: mend the plant."""
    module = importlib.import_module(plant.module)
    function: FunctionType = attrgetter(plant.function)(module)
    source = inspect.getsource(module)
    assert source.count(plant.right) == 1, f"{plant.name}: {plant.right!r} stands {source.count(plant.right)} times"
    right = function.__code__
    whole = compile(
        source.replace(plant.right, plant.wrong), module.__file__ or plant.module, "exec", dont_inherit=True
    )
    function.__code__ = _code_of(whole, plant.function)
    try:
        yield function
    finally:
        function.__code__ = right


def _code_of(code: CodeType, qualified_name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualified_name:
                return constant
            with contextlib.suppress(LookupError):
                return _code_of(constant, qualified_name)
    raise LookupError(qualified_name)
