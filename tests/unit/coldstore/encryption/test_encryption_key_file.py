"""The key file: what is read, what is refused, and that a key service is asked once; AWS KMS by moto."""

from __future__ import annotations

from pathlib import Path

import pytest
from moto import mock_aws

from coldstore.encryption.key_file import (
    FORMAT,
    KeyEntry,
    KeyFile,
    KeyFileRefused,
    encode,
    load_file,
    load_ring,
    ring_of,
)
from coldstore.encryption.kms import AwsKms, KmsKey, wrapped_by_aws
from coldstore.object_store import AccessRefused, StoreUnavailable
from logformat.errors import InvalidRequest
from logformat.values import NewerFormat
from seams.files.private_file import read_private, write_private
from tests.support.store.keys import secret_of, write_key_file


def test_a_key_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Mode 0600; the active key and the old ones."""
    path = write_key_file(tmp_path / "keys.json", "new", "old", accept_plain=True)
    ring = load_ring(path)
    assert ring.ids == ("new", "old") and ring.accepts_plain and ring.active is not None
    assert ring.active.key_id == "new" and (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """The message says what to do."""
    path = write_key_file(tmp_path / "keys.json", "a")
    Path(path).chmod(mode)
    with pytest.raises(KeyFileRefused, match="chmod 600"):
        load_ring(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format": 1, "active": "a", "accept_plain": false, "keys": {"a": {"key": "SECRETsecret"}}}',
        '{"format": 1, "active": "a", "accept_plain": false, "keys": {"a": {"key": "c2hvcnQ="}}}',
        '{"format": 1, "active": "a", "accept_plain": false, "keys": {"a": {"key": 7}}}',
        '{"format": 1, "active": "b", "accept_plain": false, "keys": {}}',
        '{"format": 1, "active": null, "accept_plain": false, "keys": {}}',
        '{"format": 1, "active": "a", "accept_plain": false, "keys": {"a": {}}}',
        "SECRETsecret",
    ],
)
def test_what_is_no_key_file_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    """The message names the file, and nothing that may be a key."""
    path = str(tmp_path / "keys.json")
    write_private(path, text.encode())
    with pytest.raises(KeyFileRefused, match=r"keys\.json") as refused:
        load_ring(path)
    assert "SECRET" not in str(refused.value) and "c2hvcnQ" not in str(refused.value)


def test_a_newer_format_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    """Each by its own words."""
    path = str(tmp_path / "keys.json")
    with pytest.raises(KeyFileRefused, match="cannot be read"):
        load_file(path)
    write_private(path, encode(KeyFile(FORMAT + 1, None, True, {})))
    with pytest.raises(NewerFormat):
        load_file(path)


def test_a_private_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """It replaces only when told to, and leaves no other file behind."""
    path = str(tmp_path / "f")
    write_private(path, b"one")
    with pytest.raises(FileExistsError):
        write_private(path, b"two")
    assert read_private(path) == b"one"
    write_private(path, b"two", replace=True)
    assert read_private(path) == b"two" and [found.name for found in tmp_path.iterdir()] == ["f"]


class Service:
    """A `KeyService` that turns bytes around, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def wrap(self, secret: bytes, context: str) -> bytes:
        return secret[::-1]

    def unwrap(self, wrapped: bytes, context: str) -> bytes:
        self.asked += 1
        return wrapped[::-1]


def test_a_key_service_is_asked_once_a_process() -> None:
    """However often the file is read: Spark's tasks open the bucket thousands of times."""
    import base64

    wrapped = base64.b64encode(secret_of("k")[::-1]).decode()
    file, service = KeyFile(FORMAT, "k", False, {"k": KeyEntry(aws_kms=KmsKey("arn", wrapped))}), Service()
    rings = [ring_of(file, "keys.json", service) for _ in range(3)]
    assert service.asked == 1 and all(ring.active is not None for ring in rings)


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    return "eu-west-1"


def test_a_key_wrapped_by_aws_kms_opens_what_it_sealed(kms: str) -> None:
    """The key file holds the ciphertext only; bound to the key's name; a disabled KMS key is a clear refusal."""
    import boto3

    with mock_aws():
        client = boto3.client("kms", region_name=kms)
        arn = client.create_key()["KeyMetadata"]["Arn"]
        wrapped = wrapped_by_aws(secret_of("k"), "k", arn, None, None)
        file = KeyFile(FORMAT, "k", False, {"k": KeyEntry(aws_kms=wrapped)})
        assert secret_of("k").hex() not in encode(file).decode() and wrapped.key_id == arn
        ring = ring_of(file, "keys.json")
        plain = ring_of(KeyFile(FORMAT, "k", False, {"k": entry_of("k")}), "keys.json")
        assert ring.active is not None and plain.active is not None and ring.active.check == plain.active.check
        with pytest.raises(AccessRefused, match="AWS KMS decrypt"):
            ring_of(KeyFile(FORMAT, "other", False, {"other": KeyEntry(aws_kms=wrapped)}), "keys.json")
        with pytest.raises(AccessRefused, match="enabled"):
            AwsKms("arn:aws:kms:eu-west-1:111122223333:key/absent").wrap(b"x", "k")
        with pytest.raises(InvalidRequest, match="not base64"):
            ring_of(KeyFile(FORMAT, "k", False, {"k": KeyEntry(aws_kms=KmsKey(arn, "%"))}), "keys.json")


def entry_of(name: str) -> KeyEntry:
    from coldstore.encryption.key_file import plain_entry

    return plain_entry(secret_of(name))


def test_a_kms_that_does_not_answer_is_unavailable(kms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retryable, unlike a refusal."""
    monkeypatch.setattr("coldstore.encryption.kms._ATTEMPTS", 1)
    with pytest.raises(StoreUnavailable, match="AWS KMS decrypt"):
        AwsKms("alias/x", kms, "http://127.0.0.1:9").unwrap(b"x", "k")
