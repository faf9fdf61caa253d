"""What is said to be cold comes from the bucket, and from nowhere else.

On S3 the store's log shows the ranged GETs. On a directory bucket an object that is not there is missed in exactly its
offset range, with an error that clients repeat, and not at all once it is back; without the bucket nothing cold can be
read, by any client. The log is only in the bucket: the data directory lists no `.log` file with a byte in it.
"""

from __future__ import annotations

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchResponse, FetchResponsePartition
from tests.support.brokers.broker_kit import FETCH_BY_NAME, fetch_request, values_of
from tests.support.clients.stock_clients import (
    READS,
    ReadFailed,
    Record,
    Written,
    alter_topic,
    create_topic,
    digest,
    read_confluent,
    write_confluent,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, seal
from tests.support.store.buckets import manifest_of, segment_keys
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

TOPIC = "events"
RECORDS = 300  # about 300 KB, five segments or more
SEGMENT_BYTES = 65_536
AWAY_S = 3.0  # how long a reader may try in vain; with the bucket there it needs a tenth of that


def records() -> list[Written]:
    return [Written(b"%d" % n, b"r-%d-" % n + bytes(1000), 1_700_000_000_000 + n) for n in range(RECORDS)]


def sink(site: Site, broker: BrokerProcess) -> list[Record]:
    """A log that lies in the bucket and nowhere else; the records as they were read while it was local."""
    create_topic(broker.kafka, TOPIC, internal_segment_bytes=SEGMENT_BYTES, local_retention_ms=-1)
    write_confluent(broker.kafka, TOPIC, 0, records(), "none", True)
    hot = read_confluent(broker.kafka, TOPIC, {0: RECORDS})
    assert [r.value for r in hot] == [w.value for w in records()]
    seal(broker)
    alter_topic(broker.kafka, TOPIC, local_retention_ms=1)
    wait_until(lambda: not site.local_log_files(TOPIC), "no local log file left")
    return hot


def fetch(broker: BrokerProcess, offset: int) -> FetchResponsePartition:
    """One Fetch at `offset`, as the broker answers it: no client's retries in between."""
    host, _, port = broker.kafka.rpartition(":")
    with WireClient(host, int(port)) as client:
        request = fetch_request((TOPIC, 0, offset), max_wait_ms=2000, partition_max_bytes=1)
        answer = client.call(ApiKey.FETCH, request, FetchResponse, version_max=FETCH_BY_NAME)
    assert not answer.error_code, answer
    return answer.responses[0].partitions[0]


def refused(broker: BrokerProcess) -> dict[int, int]:
    """Offset → error code, of every tenth offset and those beside, that a Fetch is refused with."""
    found = {}
    for offset in range(RECORDS):
        answer = fetch(broker, offset)
        if answer.error_code:
            found[offset] = answer.error_code
        else:
            assert records()[offset].value in values_of(answer), offset
    return found


def test_a_cold_read_is_ranged_gets_on_segment_objects(site: Site) -> None:
    """The store's log names every segment that the reader went through, in ranges that hold all its bytes."""
    proxy = site.bucket.proxy
    if proxy is None:
        pytest.skip("a directory bucket has no request log; the tests below move its objects instead")
    with site.broker() as broker:
        hot = sink(site, broker)
        prefix, manifest = manifest_of(site.bucket, TOPIC)
        keys = set(segment_keys(prefix, manifest).values())
        assert len(keys) >= 4
        proxy.forget()
        assert digest(read_confluent(broker.kafka, TOPIC, {0: RECORDS})) == digest(hot)
        gets = [r for r in proxy.requests() if r.method == "GET" and "/segments/" in r.key]
        assert {r.key.removeprefix("cluster-a/") for r in gets} == keys
        assert all(r.range.startswith("bytes=") and r.status == 206 for r in gets), gets
        assert sum(r.received for r in gets) >= sum(len(w.value or b"") for w in records())


def test_an_object_moved_aside_is_missed_in_exactly_its_range(directory_site: Site) -> None:
    """One offset range is refused with a retriable error, every other offset is served; back again, all is well."""
    site = directory_site
    with site.broker() as broker:
        hot = sink(site, broker)
        prefix, manifest = manifest_of(site.bucket, TOPIC)
        (base, end), key = sorted(segment_keys(prefix, manifest).items())[2]
        assert 0 < base < end < RECORDS
        assert site.bucket.move_aside(key) == 1
        codes = refused(broker)
        assert set(codes) == set(range(base, end))
        assert all(ErrorCode(code).retriable for code in codes.values()), set(codes.values())
        site.bucket.put_back()
        assert digest(read_confluent(broker.kafka, TOPIC, {0: RECORDS})) == digest(hot)
        assert refused(broker) == {}


@pytest.mark.parametrize("client", READS)
@pytest.mark.parametrize("read_before", [False, True], ids=["never-read", "read-before"])
def test_without_the_bucket_nothing_cold_is_read(directory_site: Site, client: str, read_before: bool) -> None:
    """The bucket moved away: every segment is refused and the reader does not reach the end, read before or not."""
    site = directory_site
    read, _ = READS[client]
    with site.broker() as broker:
        hot = sink(site, broker)
        if read_before:
            assert digest(read(broker.kafka, TOPIC, {0: RECORDS})) == digest(hot)
        prefix, manifest = manifest_of(site.bucket, TOPIC)
        assert site.bucket.move_aside("topics/") > 4
        # What was just read may be served for a moment more (reading.hydrate.RECHECK_S); then its name is asked.
        for base, _ in segment_keys(prefix, manifest):
            wait_until(lambda base=base: fetch(broker, base).error_code, f"offset {base} refused", 30)
        with pytest.raises(ReadFailed):
            read(broker.kafka, TOPIC, {0: RECORDS}, AWAY_S)
        site.bucket.put_back()
        assert digest(read(broker.kafka, TOPIC, {0: RECORDS})) == digest(hot)
