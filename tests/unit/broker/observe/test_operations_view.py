"""What an operator sees: conditions, the broker's line, gaps of logs that never sink, the cache under pressure."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from broker.config.network.addresses import show_address
from broker.error_codes import ErrorCode
from broker.observe.cluster_findings import OF_IMAGE, Finding
from broker.observe.conditions import Condition, Facts, conditions
from broker.observe.tier_view import BrokerStatus, broker_status, status_json
from broker.wire.apis import ApiKey
from coldstore.url import S3Url, parse_bucket_url
from hotstore.errors import LogFull
from hotstore.log.partition_log import LogState
from logformat.record_batch import Codec, stamp_max_timestamp
from logformat.records import Record, encode_batch
from seams.files.disk import Space
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, produce_request
from tests.support.fast_loop import HOUR_S, run_fast
from tests.unit.broker.observe.test_broker_observe import metrics_of, sources_of, value
from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.statuses import BrokerStatus as ReadStatus
from thermocline.cli.clients.statuses import PartitionTierStatus
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.cli.tier.status import Offsets, broker_lines, rows
from tiering.expiry.disk_quota import cache_room, excess_bytes
from tiering.expiry.local_gaps import all_gaps

CALM = Facts(data_dir="/data", log_limit_bytes=80 << 20, cache_limit_bytes=10, cache_bytes_max=10)
BAD = Facts(
    data_dir="/data",
    not_ready="probing the bucket",
    damaged_roots=("f-0", "f-1"),
    offline=("a-0", "a-1", "a-2", "a-3", "a-4"),
    bucket_uncleaned=("h-0 (object x is damaged)",),
    full=("b-0",),
    out_of_offsets=("c-0",),
    disk_free_bytes=3 << 20,
    log_limit_bytes=80 << 20,
    local_excess_ratio=0.2,
    store_failure="PUT x: no answer; 3 tries in 10s",
    store_refusals=("put_segment (PUT y: 403 AccessDenied; 5 tries in 1m)",),
    copy_lag_bytes=5_000_000,
    copy_lag_ms=3_600_000,
    blocked=("c-0 by store",),
    cache_limit_bytes=5 << 20,
    cache_bytes_max=10 << 20,
    unfit_because="its disk is full",
    copies_stopped=("d-0 (I/O error)",),
    uncleanable=("table-0 (no space left on device)",),
    overdue_transactions=("billing (3 markers missing, one for f-0)",),
    silent_ms=20_000,
    controller=2,
    missing_keys=("one (get: object x is encrypted under key 'one'; 5 tries in 1m)",),
    refused_certificates=("listener SSL: expired",),
    expiring_certificates=("listener SSL: 2026-12-01 00:00 UTC",),
    insecure=("listeners PLAINTEXT://0.0.0.0:9092",),
    cluster=tuple(Finding(name, f"e-0: {name}", "start broker 3 again") for name in sorted(OF_IMAGE)),
)


# --- conditions -----------------------------------------------------------------------------------------------------


def test_a_broker_that_is_well_says_nothing() -> None:
    assert conditions(CALM) == []


def test_every_condition_says_what_happened_and_what_to_do() -> None:
    """Worst first; bounded however many partitions are concerned; each has something to do after what is the matter."""
    found = conditions(BAD)
    weaker = (Condition.PRODUCES_SLOWED, Condition.STORE_REFUSES)  # than what holds as well
    assert [held.name for held in found] == [c.value for c in Condition if c not in weaker]
    found += [held for held in conditions(replace(BAD, store_failure="")) if held.name == "store_refuses"]
    says = {held.name: held.says for held in found}
    assert says["log_offline"] == "a-0, a-1, a-2 and 2 more offline: check the disk and the log, then restart"
    assert says["root_damaged"].startswith("f-0, f-1: their manifests in the bucket")
    assert "3 MB free below /data" in says["disk_full"] and "then appends resume" in says["disk_full"]
    assert "20% over their limit of 80 MB" in says["produces_refused"]
    assert says["not_ready"].startswith("probing the bucket: no client is served")
    assert "not in thermocline.encryption.key.file: key one (get: object x" in says["key_missing"]
    assert "3 tries in 10s" in says["store_unreachable"]
    assert "put_segment (PUT y: 403 AccessDenied; 5 tries in 1m)" in says["store_refuses"]
    assert "blocked: c-0 by store" in says["upload_lags"] and "the oldest for 1h" in says["upload_lags"]
    assert "5 of 10 MB of the chunk cache" in says["cache_reduced"]
    assert all(":" in held.says and len(held.says) < 300 for held in found)


@pytest.mark.parametrize(
    ("ratio", "name"), [(0.0, None), (0.02, None), (0.05, "produces_slowed"), (0.11, "produces_refused")]
)
def test_pressure_is_named_as_the_throttle_acts(ratio: float, name: str | None) -> None:
    """Above 2 % produces wait, above 10 % they are refused."""
    assert [held.name for held in conditions(replace(CALM, local_excess_ratio=ratio))] == ([name] if name else [])


async def test_a_full_disk_and_a_failed_one_show_everywhere() -> None:
    """In `/status`, in `/broker`, in `/metrics`; and go when an append succeeds."""
    life = await Place().start()
    await life.create("log")
    log = life.partition("log").log
    log.state = LogState.FULL
    life.context.throttle.refuse(LogFull("log-0: no space left"))
    (line,) = json.loads(status_json(sources_of(life)))
    assert line["blocked_by"] == "disk full"
    assert [held["name"] for held in broker_of(life)["conditions"]] == ["disk_full"]
    metrics = metrics_of(life)
    assert value(metrics, "thermocline_full_partitions") == 1
    assert value(metrics, "thermocline_refused_produces", reason="disk_full") == 1
    assert value(metrics, "thermocline_refused_produces", reason="offline") == 0
    assert value(metrics, "thermocline_condition", name="disk_full") == 1
    assert (await life.produce("log", b"on")).error_code == 0
    assert value(metrics_of(life), "thermocline_full_partitions") == 0
    assert broker_of(life)["conditions"] == []
    log.fail(OSError(5, "Input/output error"))
    (line,) = json.loads(status_json(sources_of(life)))
    assert line["blocked_by"] == "log offline"
    assert value(metrics_of(life), "thermocline_offline_partitions") == 1
    await life.crash()


def broker_of(life: Life) -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(broker_status(life.broker._startup, sources_of(life)))
    assert set(found) == set(BrokerStatus.__struct_fields__)
    return found


async def test_expected_answers_of_the_store_are_no_errors() -> None:
    """A start asks for roots that are not there yet, and probes on purpose: nothing to be alarmed about."""
    place = Place()
    life = await place.start()
    metrics = metrics_of(life)
    calls = {
        (sample.labels["operation"], sample.labels["outcome"]): sample.value
        for sample in metrics["thermocline_store_calls"].samples
    }
    assert calls["put_root", "ok"] > 0
    assert sum(count for (_, outcome), count in calls.items() if outcome == "missing") > 0
    assert all(sample.value == 0 for sample in metrics["thermocline_store_errors"].samples)
    place.store.down = True
    await asyncio.sleep(20)
    assert sum(sample.value for sample in metrics_of(life)["thermocline_store_errors"].samples) > 0
    place.store.down = False
    await life.stop()


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_broker_has_a_line_and_each_condition_one() -> None:
    status = ReadStatus(
        node_id=1,
        not_ready="",
        disk_bytes=100 << 30,
        disk_free_bytes=20 << 30,
        log_limit_bytes=80 << 30,
        cache_bytes=8 << 20,
        cache_limit_bytes=8 << 20,
        cache_evictions=12,
        conditions=(),
    )
    assert broker_lines(status) == [
        "broker 1: disk 20.0 GiB free of 100.0 GiB; local logs may use 80.0 GiB; chunk cache 8.0 MiB of 8.0 MiB, "
        "12 chunks evicted"
    ]


def test_the_remote_end_stays_when_all_of_it_expired() -> None:
    """ListOffsets names no record then (−1); the broker knows the end."""
    asked = ({("log", 0): 1}, Offsets({}, {}, {}, {("log", 0): -1}), {})
    (row,) = rows(*asked, [PartitionTierStatus("log", 0, remote_end_offset=70)], {})
    assert row.remote_end_offset == 70
    (row,) = rows(*asked, [], {})
    assert row.remote_end_offset == 0


def test_addresses_are_read_as_they_are_printed() -> None:
    """IPv6 in brackets, in `-b` and in URLs; without them nobody knows which colon is the port's."""
    for host, port in (("::1", 9092), ("fe80::1%eth0", 1), ("broker.example", 9092), ("10.0.0.1", 65535)):
        assert bootstrap_addresses(show_address(host, port)) == [(host, port)]
    for wrong in ("::1:9092", "[::1]", "[::1:9092", "host", "host:", ":9092", "host:70000", "host:0"):
        with pytest.raises(CommandFailed):
            bootstrap_addresses(wrong)
    url = parse_bucket_url("s3://logs/a?endpoint=http://[::1]:9000")
    assert isinstance(url, S3Url) and url.endpoint == "http://[::1]:9000"


# --- gaps -----------------------------------------------------------------------------------------------------------

Ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=4).map(
    lambda pairs: tuple(sorted({(first, first + count) for first, count in pairs}))
)


@given(Ranges, Ranges, st.integers(0, 60))
def test_every_gap_is_named_once_until_the_log_starts_behind_it(
    in_bucket: tuple[tuple[int, int], ...], in_log: tuple[tuple[int, int], ...], start: int
) -> None:
    found = all_gaps(in_bucket, in_log, start)
    assert list(found) == sorted(set(found))
    lost = {offset for gap in (*in_bucket, *in_log) for offset in range(*gap)}
    assert {o for gap in found for o in range(*gap) if o >= start} == {o for o in lost if o >= start}


async def test_a_lost_tail_of_an_untiered_topic_is_named_also_after_restarts() -> None:
    """Its records lived on that disk alone; nothing in the bucket will ever say so."""
    place = Place("thermocline.reservation.offsets=100")
    life = await place.start()
    await life.create("alone", remote_storage_enable="false")
    for at in range(30):
        await life.produce("alone", b"%d" % at)
    await life.crash()
    place.lose_disk()
    life = await place.start()
    await asyncio.sleep(1)
    assert gaps_of(life) == [[0, 100]]
    assert (await life.produce("alone", b"on")).base_offset == 100
    for _ in range(2):
        await life.stop()
        life = await place.start()
        await asyncio.sleep(5)
        assert gaps_of(life) == [[0, 100]]
        await life.produce("alone", b"more")
    await life.stop()


def gaps_of(life: Life) -> list[list[int]]:
    (line,) = json.loads(status_json(sources_of(life)))
    found: list[list[int]] = line["gaps"]
    return found


# --- the chunk cache under pressure ----------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 500), st.floats(0.1, 1.0))
def test_the_cache_yields_what_is_over_and_takes_what_is_free(used: int, cached: int, limit: int, ratio: float) -> None:
    """Never above its limit; with the cache at what it is told, the file system is within its share, or it is empty."""
    cached = min(cached, used)
    room = cache_room(cached, Space(1000, 1000 - used), limit, ratio)
    assert 0 <= room <= limit
    assert used - cached + room <= int(1000 * ratio) or room == 0
    if used <= 1000 * ratio - limit:
        assert room == limit


def test_logs_are_added_up_only_when_the_disk_is_short() -> None:
    """No walk over thousands of partitions every few seconds."""

    def never() -> int:
        raise AssertionError("asked")

    assert excess_bytes(never, Space(1000, 500), None, 0.8) < 0


def test_under_pressure_the_cache_goes_before_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The disk fills with somebody else's bytes: the cache's limit falls, is told once, and comes back."""

    async def scenario() -> None:
        place = Place()
        life = await place.start("thermocline.cache.bytes=1000000")
        await life.create("log", **{**SMALL_SEGMENTS, "local_retention_bytes": "-2"})
        for at in range(30):
            await life.produce("log", b"%d" % at * 60)
        await asyncio.sleep(60)
        local = life.partition("log").log.local_bytes
        tiers = life.tiers
        cache, free = tiers.cold._cache, place.disk.space("/").total
        from coldstore.segments.segment_reader import ChunkRef

        data = bytes(200_000)
        from crc32c import crc32c

        for at in range(3):
            await cache.put(ChunkRef(f"k{at}", 0, 0, len(data), crc32c(data)), data)
        assert cache.nbytes == 600_000
        total = free
        spaces = [Space(total, total // 5 - 300_000), Space(total, total // 5 - 100), Space(total, total)]
        place.disk.space = lambda path: spaces[0]  # type: ignore[method-assign]
        await asyncio.sleep(6)
        assert cache.nbytes <= 300_000 and cache.bytes_max < 1_000_000
        assert life.partition("log").log.local_bytes == local, "the hot log keeps its bytes"
        metrics = metrics_of(life)
        assert value(metrics, "thermocline_cold_cache_limit_bytes") == cache.bytes_max
        assert broker_of(life)["cache_limit_bytes"] == cache.bytes_max
        spaces.pop(0)
        await asyncio.sleep(30)
        told = [r.getMessage() for r in caplog.records if "chunk cache" in r.getMessage()]
        assert len(told) == 1 and "cache was reduced to" in told[0], told
        spaces.pop(0)
        await asyncio.sleep(6)
        assert cache.bytes_max == 1_000_000
        told = [r.getMessage() for r in caplog.records if "chunk cache" in r.getMessage()]
        assert len(told) == 2 and told[1] == "the chunk cache may use its 0 MB again"
        await life.stop()

    caplog.set_level(logging.INFO)
    run_fast(scenario(), timeout_s=HOUR_S)


# --- bombs ------------------------------------------------------------------------------------------------------------


async def test_a_bomb_that_must_be_looked_into_is_refused_early() -> None:
    """A batch without a maximum timestamp is read on the loop: 32 MiB of records there, not 128."""
    life = await Place().start()
    await life.create("log")
    for mib, code in ((31, ErrorCode.NONE), (40, ErrorCode.INVALID_RECORD)):
        batch = bytearray(encode_batch([Record(0, EPOCH_MS, None, bytes(mib << 20))], codec=Codec.GZIP))
        stamp_max_timestamp(batch, 0, -1)
        response = await life.call(ApiKey.PRODUCE, produce_request("log", bytes(batch)))
        assert response.responses[0].partition_responses[0].error_code == code, mib
    await life.stop()
