"""A segment above 256 MiB goes in parts; each request of that upload fails in every way, once (T7, T8, fault O9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clients.stock_clients import Written, create_topic, digest, read_confluent, write_confluent
from tests.support.processes.fault_proxy_trial import KINDS
from tests.support.processes.site import QUICK, Site, status
from tests.support.store.buckets import Stores
from tests.support.store.s3_servers import Fault
from tests.support.waiting import wait_until

TOPIC = "large"
COUNT = 312  # of 900 kB: a segment of more than 256 MiB, and a little of the next
SEGMENT_BYTES = 264 << 20
MULTIPART = ("create_multipart", "put_part", "complete_multipart", "abort_multipart")
# What is held until our deadline is shown in test_store_faults_operations; a minute each would prove no more here.
FAULTS = tuple(replace(kind, seconds=min(kind.seconds, 1.0)) for kind in KINDS)


@pytest.fixture
def site(stores: Stores, tmp_path: Path) -> Iterator[Site]:
    with stores.bucket("versitygw", tmp_path, delay_ms=0) as bucket:
        yield Site(tmp_path, bucket, dict(QUICK))


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_multipart_upload_that_fails_in_every_way(site: Site) -> None:
    """Each attempt has a new name; the one that came through is whole; what the others left is no part of the log."""
    proxy = site.bucket.proxy
    assert proxy is not None
    body = bytes(range(251)) * 3586
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, segment_bytes=SEGMENT_BYTES, local_retention_ms=1, retention_ms=-1)
        # An abort follows only where parts fail, a completion only where they do not: each step meets its own in turn.
        rules = [replace(fault, operation=o, times=1) for o in MULTIPART for fault in FAULTS]
        rules.append(Fault("status", operation="put_part", status=500, times=len(FAULTS)))
        proxy.faults(*rules)
        written = [Written(b"%d" % n, b"%d " % n + body[n:]) for n in range(COUNT)]
        write_confluent(broker.kafka, TOPIC, 0, written, "none", True)
        wait_until(lambda: status(broker, TOPIC)[0]["remote_end_offset"] > 0, "the segment is in the bucket", 400)
        wait_until(lambda: status(broker, TOPIC)[0]["local_log_start_offset"] > 0, "its local copy is gone", 60)
        hits, asked = proxy.counts().hits, proxy.counts().requests
        print({operation: asked[operation] for operation in MULTIPART}, dict(hits))
        missing = {(o, fault.name) for o in MULTIPART for fault in FAULTS} - set(hits)
        assert not missing
        found = read_confluent(broker.kafka, TOPIC, {0: COUNT})
        assert [(r.offset, r.key, r.value) for r in found] == [(n, w.key, w.value) for n, w in enumerate(written)]
        assert broker.stop() == 0
    verify = site.cli("bucket", "verify", site.bucket.url, "--deep")
    assert verify.returncode == 0, verify.stdout + verify.stderr
    assert digest(found)
