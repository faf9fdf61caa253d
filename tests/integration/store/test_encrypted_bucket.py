"""An encrypted bucket as operators and clients meet it: brokers, the command line, readers of history, wrong keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.stock_clients import (
    Written,
    create_topic,
    digest,
    read_confluent,
    write_confluent,
)
from tests.support.processes.site import Site, seal, status
from tests.support.store.buckets import Bucket
from tests.support.store.keys import secret_of, write_key_file
from tests.support.waiting import wait_until
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.read import read

TOPIC = "orders-of-alice"
COUNT = 400
ENDS = {0: COUNT, 1: COUNT}
SECRET = b"account 4711 of Alice"
CONFIG = "thermocline.encryption.key.file"
VARIABLE = "THERMOCLINE_ENCRYPTION_KEY_FILE"


def some(mark: str, count: int = COUNT) -> list[Written]:
    return [Written(b"key", f"{mark} {n} ".encode() + SECRET * 10) for n in range(count)]


def fill(kafka: str) -> str:
    """Two partitions in several segments; the digest of their records."""
    create_topic(kafka, TOPIC, partitions=2, internal_segment_bytes=30_000, local_retention_bytes=1)
    for partition in ENDS:
        write_confluent(kafka, TOPIC, partition, some(f"p{partition}"), "none", True)
    return digest(read_confluent(kafka, TOPIC, ENDS))


def use(site: Site, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Brokers by their config, tools by the environment."""
    site.settings[CONFIG] = path
    monkeypatch.setenv(VARIABLE, path)


@pytest.fixture
def keys(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A key file that brokers and tools of the site use."""
    path = write_key_file(tmp_path / "keys.json", "one")
    use(site, monkeypatch, path)
    return path


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {key: bucket.read(key) for key in bucket.listing()}


def test_a_cluster_on_an_encrypted_bucket(site: Site, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Produce, copy, expire, lose the disk, consume cold: the same records; verify, gc and `thermocline.read`
    read it by the same key; the bucket has no plaintext, not even a topic's name."""
    with site.broker() as broker:
        expected = fill(broker.kafka)
        seal(broker)
        wait_until(
            lambda: all(p["local_log_start_offset"] > 0 for p in status(broker, TOPIC)), "local segments expired"
        )
        assert digest(read_confluent(broker.kafka, TOPIC, ENDS)) == expected
        broker.kill()
    for key, stored in contents(site.bucket).items():
        assert stored.endswith(b"THERMENC"), key
        for word in (SECRET, SECRET[:10], TOPIC.encode(), b"format_version"):
            assert word not in stored, (key, word)
    site.lose_data_dir()
    with site.broker() as broker:
        assert digest(read_confluent(broker.kafka, TOPIC, ENDS)) == expected
        assert broker.stop() == 0
    for command in (
        ("bucket", "verify", site.bucket.url, "--deep"),
        ("bucket", "gc", site.bucket.url, "--delete"),
        ("bucket", "verify", site.bucket.url, "--deep"),
        ("bucket", "ls", site.bucket.url),
    ):
        ran = site.cli(*command)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    for name, value in site.bucket.environment.items():
        monkeypatch.setenv(name, value)
    assert values_of(site.bucket.url) == sorted(w.value or b"" for p in ENDS for w in some(f"p{p}"))


def values_of(url: str) -> list[bytes]:
    with read(url, TOPIC) as rows:
        return sorted(value.as_py() for batch in rows for value in batch.column("value"))


def test_a_broker_without_the_right_key_does_not_start(
    directory_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 for a key that does not fit, 2 for a file that is none; the message says which key; no object changes."""
    site = directory_site
    right = write_key_file(tmp_path / "keys.json", "one")
    use(site, monkeypatch, right)
    with site.broker() as broker:
        expected = fill(broker.kafka)
        seal(broker)
        assert broker.stop() == 0
    before = contents(site.bucket)
    other = write_key_file(tmp_path / "other.json", "two")
    forged = write_key_file(tmp_path / "forged.json", "one", secrets={"one": secret_of("of another bucket")})
    open_to_all = Path(write_key_file(tmp_path / "open.json", "one"))
    open_to_all.chmod(0o644)
    broken = tmp_path / "broken.json"
    broken.write_text('{"keys": {"one": "' + secret_of("one").hex() + '"}}')
    broken.chmod(0o600)
    for path, code, said in (
        (other, 3, "under key 'one', which is not in key file"),
        (forged, 3, "holds another key under that id"),
        (str(open_to_all), 2, "chmod 600"),
        (str(broken), 2, "is not valid"),
        (str(tmp_path / "absent.json"), 2, "cannot be read"),
        ("", 3, "is encrypted"),
    ):
        site.settings[CONFIG] = path
        monkeypatch.setenv(VARIABLE, path)
        for place in ("a", "new"):
            with site.broker(place, wait_ready=False) as broker:
                assert broker.wait() == code, (path, place)
                assert said in broker.log() and secret_of("one").hex() not in broker.log(), broker.log()
        assert contents(site.bucket) == before, path
        verified = site.cli("bucket", "verify", site.bucket.url)
        assert verified.returncode not in (0, 5) and said in verified.stderr, (verified.stdout, verified.stderr)
    use(site, monkeypatch, right)
    with site.broker() as broker:
        assert digest(read_confluent(broker.kafka, TOPIC, ENDS)) == expected


def test_keys_are_rotated_beside_a_running_broker(site: Site, keys: str) -> None:
    """The new key from the broker's next start on, a rewrap while it serves, and the old key is gone for good; a broker
    that leads meanwhile loses nothing and stays up."""
    with site.broker() as broker:
        fill(broker.kafka)
        seal(broker)
        assert broker.stop() == 0
    assert site.cli("key", "rotate", keys, "--id", "two").returncode == 0
    with site.broker() as broker:
        write_confluent(broker.kafka, TOPIC, 0, some("later"), "none", True)
        seal(broker)
        ends = {0: 2 * COUNT, 1: COUNT}
        expected = digest(read_confluent(broker.kafka, TOPIC, ends))
        counted = site.cli("bucket", "rewrap", site.bucket.url, "--dry-run")
        assert "objects under key one" in counted.stdout and "objects under key two" in counted.stdout
        early = site.cli("key", "remove", keys, "one", "--bucket", site.bucket.url, "--yes")
        assert early.returncode == Exit.REFUSED and "objects of the bucket are under key one" in early.stderr
        done = site.cli("bucket", "rewrap", site.bucket.url)
        assert done.returncode == 0 and "only the active key is needed" in done.stdout, (done.stdout, done.stderr)
        write_confluent(broker.kafka, TOPIC, 1, some("last", 10), "none", True)
        seal(broker)
        ends[1] += 10
        expected = digest(read_confluent(broker.kafka, TOPIC, ends))
        assert broker.stop() == 0
    removed = site.cli("key", "remove", keys, "one", "--bucket", site.bucket.url, "--yes")
    assert removed.returncode == 0, removed.stderr
    site.lose_data_dir()
    with site.broker() as broker:
        assert digest(read_confluent(broker.kafka, TOPIC, ends)) == expected
    verified = site.cli("bucket", "verify", site.bucket.url, "--deep")
    assert verified.returncode == 0, verified.stdout


def test_encryption_is_switched_on_for_a_bucket_in_use(
    directory_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain objects stay readable until a rewrap encrypted them; only then may they be refused. Without the first step
    a broker refuses the bucket instead of reading what somebody may have put there."""
    site, path = directory_site, str(tmp_path / "keys.json")
    with site.broker() as broker:
        expected = fill(broker.kafka)
        seal(broker)
        assert broker.stop() == 0
    use(site, monkeypatch, write_key_file(tmp_path / "strict.json", "one"))
    with site.broker(wait_ready=False) as broker:
        assert broker.wait() == Exit.REFUSED and "is not encrypted" in broker.log()
    assert site.cli("key", "create", path, "--id", "one", "--accept-plain", "--inactive").returncode == 0
    use(site, monkeypatch, path)
    with site.broker() as broker:
        assert digest(read_confluent(broker.kafka, TOPIC, ENDS)) == expected
        assert broker.stop() == 0
    assert not any(stored.endswith(b"THERMENC") for stored in contents(site.bucket).values())
    assert site.cli("key", "set", path, "--active", "one").returncode == 0
    with site.broker() as broker:
        write_confluent(broker.kafka, TOPIC, 0, some("later"), "none", True)
        seal(broker)
        ends = {0: 2 * COUNT, 1: COUNT}
        expected = digest(read_confluent(broker.kafka, TOPIC, ends))
        assert {stored.endswith(b"THERMENC") for stored in contents(site.bucket).values()} == {True, False}
        assert site.cli("bucket", "verify", site.bucket.url, "--deep").returncode == 0
        assert site.cli("bucket", "rewrap", site.bucket.url).returncode == 0
        assert digest(read_confluent(broker.kafka, TOPIC, ends)) == expected
        assert broker.stop() == 0
    assert all(stored.endswith(b"THERMENC") for stored in contents(site.bucket).values())
    assert site.cli("key", "set", path, "--plain", "refuse").returncode == 0
    site.lose_data_dir()
    with site.broker() as broker:
        assert digest(read_confluent(broker.kafka, TOPIC, ends)) == expected


def test_a_lost_root_is_rebuilt_and_a_read_only_broker_reads(
    directory_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cluster rebuild` reads encrypted manifests and writes an encrypted root; without the key it changes nothing."""
    site = directory_site
    use(site, monkeypatch, write_key_file(tmp_path / "keys.json", "one"))
    with site.broker() as broker:
        expected = fill(broker.kafka)
        seal(broker)
        with site.broker("reader", "--read-only") as reader:
            assert digest(read_confluent(reader.kafka, TOPIC, ENDS)) == expected
        assert broker.stop() == 0
    root = tmp_path / "bucket" / "cluster.json"
    root.unlink()
    before = contents(site.bucket)
    with monkeypatch.context() as without:
        without.delenv(VARIABLE)
        refused = site.cli("cluster", "rebuild", "--bucket", site.bucket.url, "--yes")
        assert refused.returncode not in (0, 5) and "is encrypted" in refused.stderr
    assert contents(site.bucket) == before
    rebuilt = site.cli("cluster", "rebuild", "--bucket", site.bucket.url, "--yes")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert root.read_bytes().endswith(b"THERMENC")
    with site.broker() as broker:
        restored = site.cli("cluster", "restore", "--bucket", site.bucket.url, "-b", broker.kafka, "--yes")
        assert restored.returncode == 0, restored.stderr
        assert digest(read_confluent(broker.kafka, TOPIC, ENDS)) == expected
