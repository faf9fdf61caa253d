"""A key file that is read again: its keys count for the open store, or the old ones stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.key_file import KeyFile, KeyFileRefused, encode, load_ring, plain_entry
from coldstore.encryption.marker import KeyRefused
from coldstore.encryption.reloaded_keys import ReloadedKeys
from coldstore.object_store import ObjectInfo, StoreUnavailable, Upload
from seams.rng import SystemRng
from tests.support.store.memory_store import MemoryStore
from tests.support.workers import InlineWorkers


class Place:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "keys.json"
        self.write("old", old=b"o" * 32)
        self.below = MemoryStore()
        self.store = EncryptedStore(self.below, load_ring(str(self.path)), InlineWorkers(), SystemRng())
        self.keys = ReloadedKeys(str(self.path), self.store)

    def write(self, active: str | None, *, accept_plain: bool = False, **secrets: bytes) -> None:
        entries = {name: plain_entry(secret) for name, secret in secrets.items()}
        self.path.write_bytes(encode(KeyFile(1, active, accept_plain, entries)))
        self.path.chmod(0o600)


async def test_a_new_key_is_used_without_a_new_store(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.store.put_root("first", b"{1}", None)
    place.write("new", old=b"o" * 32, new=b"n" * 32)
    assert place.keys.reload() and place.keys.says == "2 keys, new objects are encrypted under new"
    assert not place.keys.reload(), "nothing changed since"
    await place.store.put_root("second", b"{2}", None)
    assert (await place.store.get("first")).data == b"{1}"
    place.write("new", new=b"n" * 32)
    assert place.keys.reload()
    assert place.keys.says == "1 key, new objects are encrypted under new; objects under key old can no longer be read"
    assert (await place.store.get("second")).data == b"{2}"
    with pytest.raises(KeyRefused, match="'old'"):
        await place.store.get("first")
    place.write("new", old=b"o" * 32, new=b"n" * 32)
    assert place.keys.reload() and place.keys.says == "2 keys, new objects are encrypted under new"


async def test_plain_objects_that_were_read_are_refused_from_then_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("old", accept_plain=True, old=b"o" * 32)
    assert place.keys.reload()
    await place.below.put_root("plain", b"{0}{0}", None)
    assert (await place.store.get("plain", 1, 2)).data == b"0}"
    place.write("old", old=b"o" * 32)
    assert place.keys.reload()
    with pytest.raises(KeyRefused, match="not encrypted"):
        await place.store.get("plain", 1, 2)


@pytest.mark.parametrize("active", ["old", None], ids=["under the old key", "plain"])
async def test_an_upload_that_the_new_keys_do_not_read_counts_as_failed(tmp_path: Path, active: str | None) -> None:
    """Regression: the object was committed and verified by its cached trailer, and its local copy could go. Nobody read
    it until the old key was put back."""
    place = Place(tmp_path)
    place.write(active, accept_plain=active is None, old=b"o" * 32)
    place.keys.reload()
    put = place.below.put_segment

    async def reloaded_meanwhile(key: str, body: Upload) -> ObjectInfo:
        info = await put(key, body)
        place.write("new", new=b"n" * 32)
        assert place.keys.reload()
        return info

    place.below.put_segment = reloaded_meanwhile  # type: ignore[method-assign]
    upload = Upload(3, crc32c(b"abc"), lambda: iter((b"abc",)))
    with pytest.raises(StoreUnavailable, match="no longer reads"):
        await place.store.put_segment("object", upload)
    place.below.put_segment = put  # type: ignore[method-assign]
    await place.store.put_segment("again", upload)
    assert (await place.store.get("again")).data == b"abc"


@pytest.mark.parametrize("active", ["old", None], ids=["under the old key", "plain"])
async def test_a_root_that_the_new_keys_do_not_read_is_written_again(tmp_path: Path, active: str | None) -> None:
    """Regression: no other broker read it before its writer wrote it the next time."""
    place = Place(tmp_path)
    place.write(active, accept_plain=active is None, old=b"o" * 32)
    place.keys.reload()
    put = place.below.put_root

    async def reloaded_meanwhile(key: str, data: bytes, if_match: str | None) -> str:
        etag = await put(key, data, if_match)
        if if_match is None:
            place.write("new", new=b"n" * 32)
            assert place.keys.reload()
        return etag

    place.below.put_root = reloaded_meanwhile  # type: ignore[method-assign]
    etag = await place.store.put_root("root", b"abc", None)
    got = await place.store.get("root")
    assert (got.data, got.etag) == (b"abc", etag)


def test_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """A broken file, and one with another key under the same id: of another bucket, or made anew by mistake."""
    place = Place(tmp_path)
    before = place.store.ring
    place.path.write_text("{")
    with pytest.raises(KeyFileRefused, match="is not valid"):
        place.keys.reload()
    place.write("old", old=b"x" * 32)
    with pytest.raises(KeyFileRefused, match="another key under the id old"):
        place.keys.reload()
    place.path.unlink()
    with pytest.raises(KeyFileRefused, match="cannot be read"):
        place.keys.reload()
    assert place.store.ring is before
