"""A disk that refuses the removal of a file once: what is left of the log is one run of segments, and opens again."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.support.brokers.broker_kit import Place


@pytest.mark.parametrize("operation", ["rename", "sync_dir", "unlink"])
async def test_what_retention_could_not_remove_goes_before_what_follows(operation: str) -> None:
    """The log had forgotten those segments, and the next look removed later ones: there was a hole, and the next start
    refused the partition."""
    place = Place()
    life = await place.start()
    configs = {"remote_storage_enable": "false", "segment_bytes": "1048576", "retention_bytes": "2200000"}
    await life.create("log", **configs)
    for number in range(10):
        assert (await life.produce("log", b"%d" % number * 600_000)).error_code == 0
    refused: list[str] = []

    def refuse(kind: str, path: str) -> None:
        if kind != operation or "/log-0" not in path or refused:
            return
        is_going = any(name.endswith(".deleted") for name in place.disk.list_dir("/data/a/log-0"))
        if is_going if operation == "sync_dir" else path.endswith((".log", ".log.deleted")):
            refused.append(path)
            raise OSError(errno.EIO, "injected", path)

    place.disk.on_effect = refuse
    async with asyncio.timeout(1500.0):
        while not refused:
            await asyncio.sleep(10.0)
    for number in range(10):
        assert (await life.produce("log", b"%d" % number * 600_000)).error_code == 0
    await asyncio.sleep(1000.0)
    assert (await life.produce("log", b"last")).error_code == 0
    start = life.partition("log").log.log_start_offset
    await life.stop()
    place.kill()
    life = await place.start()
    assert (await life.read_all("log", start=start))[-1] == (20, b"last")
    await life.stop()
