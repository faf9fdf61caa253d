"""Cold reads when the bucket is damaged, and what they cost on S3 (guarantees G6, G11, G12; faults O1, O4, O7).

Every read starts on a broker that has read nothing yet, so that no file it holds open and no chunk in its cache can
answer instead. That cold data comes from the bucket at all is shown in test_cold_reads_evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic, FetchResponse
from tests.support.brokers.broker_kit import FETCH_BY_NAME
from tests.support.clients.stock_clients import (
    Record,
    Written,
    create_topic,
    digest,
    read_confluent,
    write_confluent,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, seal, status
from tests.support.store.buckets import manifest_of, segment_keys
from tests.support.store.s3_servers import Fault
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

TOPIC = "events"
COUNT = 600
# What a consumer answers by asking again (KIP-896's table of retriable errors, those a Fetch may carry).
RETRIABLE = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT}


def written() -> list[Written]:
    """About 1.2 MB that do not compress."""
    return [Written(b"%d" % n, bytes((n * 7 + i * i) % 251 for i in range(2000))) for n in range(COUNT)]


@pytest.fixture
def sunk(site: Site) -> Iterator[tuple[Site, list[Record], int]]:
    """A site whose topic lies in the bucket alone, no broker running; what was in it, and its log bytes."""
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, internal_segment_bytes=131_072, local_retention_ms=1)
        write_confluent(broker.kafka, TOPIC, 0, written(), "none", True)
        before = read_confluent(broker.kafka, TOPIC, {0: COUNT})
        seal(broker)
        wait_until(lambda: site.local_log_files(TOPIC) == [], "every local segment unlinked")
        cold_bytes = status(broker, TOPIC)[0]["cold_bytes"]
        assert broker.stop() == 0
    assert len(segment_keys(*manifest_of(site.bucket, TOPIC))) >= 8
    site.settings["thermocline.cache.bytes"] = cold_bytes // 10
    yield site, before, cold_bytes


def fetch(broker: BrokerProcess, offset: int, max_wait_ms: int = 500) -> tuple[ErrorCode, int]:
    """One Fetch of up to 64 KiB: the partition's error and how many bytes of records came."""
    host, _, port = broker.kafka.rpartition(":")
    partition = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=65_536)
    topic = FetchRequestTopic(topic=TOPIC, partitions=[partition])
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=65_536, topics=[topic])
    with WireClient(host, int(port)) as client:
        answer = client.call(ApiKey.FETCH, request, FetchResponse, version_max=FETCH_BY_NAME)
    (found,) = answer.responses[0].partitions
    return ErrorCode(found.error_code), len(found.records or b"")


def fetch_until_answered(broker: BrokerProcess, offset: int) -> ErrorCode:
    """Fetch until there is an error or there are records: empty means that the work goes on into the cache."""

    def answered() -> tuple[ErrorCode, int] | None:
        error, size = fetch(broker, offset)
        return (error, size) if error is not ErrorCode.NONE or size else None

    return wait_until(answered, f"an answer at {offset}")[0]


@pytest.mark.parametrize("bucket", ["moto", pytest.param("versitygw", marks=pytest.mark.peer)], indirect=True)
def test_a_replay_from_s3_asks_for_each_byte_about_once(sunk: tuple[Site, list[Record], int]) -> None:
    """Every cold byte came by a ranged GET of at most 4 MiB of a segment object, the whole log about once a replay, and
    the cache stayed within a tenth of the data."""
    site, before, cold_bytes = sunk
    proxy = site.bucket.proxy
    assert proxy is not None
    with site.broker() as broker:
        proxy.forget()
        assert site.local_log_files(TOPIC) == []
        assert digest(read_confluent(broker.kafka, TOPIC, {0: COUNT})) == digest(before)
        gets = [r for r in proxy.requests() if r.method == "GET" and "/segments/" in r.key]
        assert gets
        assert all(r.status == 206 and r.range.startswith("bytes=") for r in gets)
        assert max(r.received for r in gets) <= 4 << 20
        asked = sum(r.received for r in gets)
        assert cold_bytes <= asked <= 2 * cold_bytes, "read about once: footers and what the cache let go come on top"
        assert not [
            r for r in proxy.requests() if r.method == "GET" and not r.query and "/segments/" in r.key and not r.range
        ]
        cached = sum(f.stat().st_size for f in site.data_dir().rglob("*") if "cache" in str(f) and f.is_file())
        assert cached <= cold_bytes // 10 + (64 << 10)


@pytest.mark.parametrize("bucket", ["directory", "moto"], indirect=True)
def test_a_missing_object_takes_exactly_its_range(sunk: tuple[Site, list[Record], int]) -> None:
    """One object moved aside: offsets in its range fail with a retriable error, all others are served, so are produce
    and hot reads; when it is back, a consumer that had stopped there goes on by itself."""
    site, before, _ = sunk
    keys = segment_keys(*manifest_of(site.bucket, TOPIC))
    (first, end), key = sorted(keys.items())[3]
    with site.broker() as broker:
        assert site.bucket.move_aside(key) == 1
        for offset, hit in ((0, False), (first - 1, False), (first, True), (end - 1, True), (end, False)):
            error = fetch_until_answered(broker, offset)
            assert (error in RETRIABLE) if hit else (error is ErrorCode.NONE), f"offset {offset}: {error!r}"
        write_confluent(broker.kafka, TOPIC, 0, [Written(b"hot", b"value")], "none", True)
        assert fetch_until_answered(broker, COUNT) is ErrorCode.NONE
        verified = site.cli("bucket", "verify", site.bucket.url)
        assert verified.returncode == 5
        assert key in verified.stdout
        site.bucket.put_back()
        assert digest(read_confluent(broker.kafka, TOPIC, {0: COUNT})) == digest(before)
        wait_until(lambda: fetch(broker, first)[0] is ErrorCode.NONE, "the range heals")
    assert site.cli("bucket", "verify", site.bucket.url).returncode == 0


def test_a_flipped_bit_in_an_object_never_reaches_a_client(sunk: tuple[Site, list[Record], int]) -> None:
    """Damage at rest is answered with an error, not with the bytes; `verify --deep` names the object, exit 5 (G11)."""
    site, before, _ = sunk
    keys = segment_keys(*manifest_of(site.bucket, TOPIC))
    (first, end), key = sorted(keys.items())[2]
    good = site.bucket.read(key)
    bad = bytearray(good)
    bad[5000] ^= 0x20
    site.bucket.load({key: bytes(bad)})
    with site.broker() as broker:
        assert fetch_until_answered(broker, first) is not ErrorCode.NONE
        assert fetch_until_answered(broker, end) is ErrorCode.NONE
        deep = site.cli("bucket", "verify", site.bucket.url, "--deep")
        assert deep.returncode == 5
        assert key in deep.stdout
    site.bucket.load({key: good})
    with site.broker() as broker:
        assert digest(read_confluent(broker.kafka, TOPIC, {0: COUNT})) == digest(before)


@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
def test_a_store_that_lies_and_stumbles_is_read_right(sunk: tuple[Site, list[Record], int]) -> None:
    """Faults O1, O4: bodies cut off, bits flipped, errors, resets in the ranged GETs: the same digest, only later."""
    site, before, _ = sunk
    proxy = site.bucket.proxy
    assert proxy is not None
    with site.broker() as broker:
        kinds = ("status", "truncate", "flip", "reset", "wrong_range")
        proxy.faults(*(Fault(kind, method="GET", match="/segments/", after=2, times=2) for kind in kinds))
        assert digest(read_confluent(broker.kafka, TOPIC, {0: COUNT})) == digest(before)
        assert sum(proxy.hits()) >= len(kinds)
