"""Rows of an encrypted bucket on S3 (versitygw): upload and cold replay, against the same broker without encryption."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import loads
from bench.rows.s3 import COLD_BYTES, DELAY_MS, Replay, broker, range_server
from bench.sides import Side, wait_cold
from bench.stage import Stage
from bench.table import Floor, Measured, Row
from tests.support.store.keys import write_key_file
from tests.support.store.s3_servers import versitygw_server

_FLOOR: Final = Floor(0.8)
_SEGMENT_BYTES: Final = 64 << 20


def encrypted_cold(stage: Stage) -> list[Row]:
    """One partition replayed in order, the chunk cache a quarter of it."""
    work = f"fetch 1 MB cold from an encrypted bucket, {DELAY_MS} ms to first byte; beside: a plain bucket"
    row = Row("encrypted-cold", work, "MB/s", _FLOOR)
    settings = {"thermocline_cache_bytes": COLD_BYTES // 4, "log_local_retention_ms": 1}
    with (
        tempfile.TemporaryDirectory() as directory,
        versitygw_server(directory) as upstream,
        range_server(directory, upstream) as server,
        ExitStack() as sides,
    ):
        os.environ.update(server.environment())
        keys = write_key_file(Path(directory).with_suffix(".keys"), "bench")
        sides.callback(os.unlink, keys)
        plain = Replay(*sides.enter_context(broker(stage, "plain-cold", server, **settings)), upstream)
        ours = broker(stage, "encrypted-cold", server, thermocline_encryption_key_file=keys, **settings)
        encrypted = Replay(*sides.enter_context(ours), upstream)
        stage.compare(row, lambda: stage.settled(plain.run), lambda: stage.settled(encrypted.run), warm_up=False)
    return [row]


def encrypted_upload(stage: Stage) -> list[Row]:
    """From the first record written to the last segment that is in the bucket only."""
    work = "write 1 GiB and sink it to an encrypted bucket (S3, 64 MiB segments); beside: a plain bucket"
    row = Row("encrypted-upload", work, "MB/s", _FLOOR)
    settings = {"log_local_retention_ms": 1}

    def sunk(side: Side) -> Callable[[str], Measured]:
        def run(topic: str) -> Measured:
            began, cpu = time.monotonic(), side.cpu_seconds()
            end = loads.fill(side, topic, 1, COLD_BYTES)
            wait_cold(side, topic, int(end * 0.9))
            nbytes = COLD_BYTES * 0.9
            return Measured(nbytes / (time.monotonic() - began) / 1e6, (side.cpu_seconds() - cpu) / (nbytes / 1e9))

        return run

    with tempfile.TemporaryDirectory() as directory, versitygw_server() as server, ExitStack() as sides:
        keys = write_key_file(Path(directory) / "keys.json", "bench")
        plain, _ = sides.enter_context(broker(stage, "plain-upload", server, **settings))
        ours = broker(stage, "encrypted-upload", server, thermocline_encryption_key_file=keys, **settings)
        encrypted, _ = sides.enter_context(ours)

        def turn(side: Side) -> Measured:
            configs = {"remote_storage_enable": "true", "segment_bytes": _SEGMENT_BYTES}
            return stage.writing(side, row.name, 1, sunk(side), 2 * COLD_BYTES, **configs)

        stage.compare(row, lambda: turn(plain), lambda: turn(encrypted), warm_up=False)
    return [row]


BENCHMARKS: Final[dict[str, Callable[[Stage], list[Row]]]] = {
    "encrypted-cold": encrypted_cold,
    "encrypted-upload": encrypted_upload,
}
