"""What every object store must do, as tests: subclass `StoreConformance` and provide a `place` fixture.

A `Place` opens stores over one bucket and may look at (or fill) the bucket behind the store's back. Each test gets a
store of its own below a fresh prefix of keys, so places may be shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import pytest
from crc32c import crc32c

from coldstore.inspection.probe import Verification, probe, race
from coldstore.object_store import (
    ChecksumRefused,
    ConditionalConflict,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    Upload,
)
from logformat.errors import Corrupt, InvalidRequest
from seams.files.disk import Buffer
from seams.rng import SeededRng, SystemRng
from tests.support.store.memory_store import trailed, upload_of

HOSTILE_KEYS = ("", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\0b", "a\nb", ".thermocline/tmp/x")
HOSTILE_KEYS += ("x" * 256, "k/" * 600 + "k", "..")
ODD_KEYS = ("a b", "plus+plus", "50%25", "ünï/cödé", "q?x=1&y", "hash#tag", "star*", "tilde~", "-dash", "a=b,c;d")


class Place(Protocol):
    """Where stores of one kind are opened."""

    checks_checksums: bool  # refuses a wrong CRC32C by itself
    keeps_checksums: bool  # HEAD tells the CRC32C of a large object
    refuses_reused_names: bool

    def open(self) -> ObjectStore: ...
    def fill(self, keys: list[str], data: bytes) -> None:
        """Put objects quickly, behind the store's back."""
        ...


def on_store(scenario: Callable[[Any, ObjectStore, str, Any], Awaitable[None]]) -> Callable[[Any, Any], None]:
    """Run an async test `(self, store, base, place)` on a loop of its own; `base` is a fresh prefix ending in '/'."""

    def test(self: Any, place: Any) -> None:
        async def run() -> None:
            store = place.open()
            try:
                async with asyncio.timeout(90):
                    await scenario(self, store, f"{SystemRng().uuid()}/", place)
            finally:
                await store.close()

        asyncio.run(run())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


async def _nothing_at(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except ObjectMissing:
        return True
    return False


class StoreConformance:
    """The protocol of coldstore.object_store, store by store."""

    @on_store
    async def test_a_root_is_created_once(self, store: ObjectStore, base: str, place: Place) -> None:
        """If-None-Match: the second create is refused and changes nothing."""
        key = base + "root.json"
        etag = await store.put_root(key, b"one", None)
        with pytest.raises(PreconditionFailed):
            await store.put_root(key, b"two", None)
        got = await store.get(key)
        assert (got.data, got.etag, got.size) == (b"one", etag, 3)

    @on_store
    async def test_a_root_is_replaced_only_on_its_current_etag(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """If-Match: the current ETag replaces, a stale one is refused and changes nothing."""
        key = base + "root.json"
        first = await store.put_root(key, b"one", None)
        second = await store.put_root(key, b"two", first)
        assert second != first
        with pytest.raises(PreconditionFailed):
            await store.put_root(key, b"three", first)
        got = await store.get(key)
        assert (got.data, got.etag) == (b"two", second)

    @on_store
    async def test_if_match_on_a_missing_root_is_refused(self, store: ObjectStore, base: str, place: Place) -> None:
        """T9: minio once let it succeed; a deleted root must not be recreated by a writer who thinks it is there."""
        etag = await store.put_root(base + "there", b"one", None)
        with pytest.raises(PreconditionFailed):
            await store.put_root(base + "absent", b"two", etag)
        assert await _nothing_at(store, base + "absent")

    @on_store
    async def test_a_conditional_get_tells_changed_from_unchanged(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """Polling a root costs an empty answer while nothing changes."""
        key = base + "root.json"
        first = await store.put_root(key, b"one", None)
        assert await store.get_if_changed(key, first) is None
        second = await store.put_root(key, b"two", first)
        got = await store.get_if_changed(key, first)
        assert got is not None and (got.data, got.etag) == (b"two", second)
        fresh = await store.get_if_changed(key, None)
        assert fresh is not None and fresh.data == b"two"

    @on_store
    async def test_every_read_of_a_missing_object_says_missing(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """404 is its own answer, whichever way it was asked."""
        await store.put_root(base + "dir/there", b"x", None)
        for key in (base + "absent", base + "dir", base + "dir/there/below"):
            with pytest.raises(ObjectMissing):
                await store.get(key)
            with pytest.raises(ObjectMissing):
                await store.get(key, 5, 10)
            with pytest.raises(ObjectMissing):
                await store.get(key, -10)
            with pytest.raises(ObjectMissing):
                await store.get_if_changed(key, '"abc"')
            with pytest.raises(ObjectMissing):
                await store.head(key)

    @on_store
    async def test_ranges_and_tails_are_the_bytes_of_the_object(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """A range beyond the end is cut, a tail longer than the object is the object, each with the whole's size."""
        data = bytes(i * 31 % 251 for i in range(600_000))
        info = await store.put_segment(base + "s", upload_of(data, 100_000))
        assert info.size == len(data)
        for start, length in ((0, 1), (0, 600_000), (17, 4096), (599_999, 1), (599_000, 5000), (300_000, None)):
            got = await store.get(base + "s", start, length)
            end = None if length is None else start + length
            assert (got.data == data[start:end], got.size) == (True, len(data)), (start, length)
        for tail in (1, 64, 599_999, 600_000, 700_000):
            got = await store.get(base + "s", -tail)
            assert (got.data == data[-tail:], got.size) == (True, len(data)), tail
        assert (await store.get(base + "s")).data == data
        with pytest.raises(InvalidRequest):
            await store.get(base + "s", 600_000, 1)

    @on_store
    async def test_a_segment_is_stored_with_its_checksum(self, store: ObjectStore, base: str, place: Place) -> None:
        """Size always; the CRC32C wherever the store claims to keep it, and then it is the right one."""
        data = bytes(range(256)) * 4096
        info = await store.put_segment(base + "s", upload_of(data, 65_536))
        head = await store.head(base + "s")
        assert (head.key, head.size, head.etag) == (base + "s", len(data), info.etag)
        assert info.crc32c in (None, crc32c(data))
        assert head.crc32c == (crc32c(data) if place.keeps_checksums else None)

    @on_store
    async def test_a_wrong_checksum_is_refused(self, store: ObjectStore, base: str, place: Place) -> None:
        """Bytes that are not what was announced do not become an object (where the store checks at all)."""
        data = b"some bytes" * 100
        wrong = Upload(len(data), crc32c(data) ^ 1, lambda: iter((data,)))
        if not place.checks_checksums:
            pytest.skip("this store takes any checksum: the probe says read-back")
        with pytest.raises(ChecksumRefused):
            await store.put_segment(base + "s", wrong)
        assert await _nothing_at(store, base + "s")

    @on_store
    async def test_a_checksum_may_come_behind_the_bytes(self, store: ObjectStore, base: str, place: Place) -> None:
        """Bytes, size and checksum are as if it had come before them, whatever the object's size and its pieces."""
        for number, (size, piece) in enumerate(((0, 10), (1, 10), (300_000, 1000), ((2 << 20) + 17, 1 << 20))):
            data, key = (bytes(i * 31 % 251 for i in range(251)) * (size // 251 + 1))[:size], f"{base}s{number}"
            info = await store.put_segment(key, trailed(data, piece=piece))
            head = await store.head(key)
            assert (info.size, info.etag, head.size) == (size, head.etag, size)
            assert info.crc32c in (None, crc32c(data))
            assert head.crc32c in ((crc32c(data),) if place.keeps_checksums and size else (None, crc32c(data)))
            assert (await store.get(key)).data == data

    @on_store
    async def test_a_wrong_checksum_behind_the_bytes_is_refused(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """As where it comes before them: no object."""
        if not place.checks_checksums:
            pytest.skip("this store takes any checksum: the probe says read-back")
        data = bytes(300_000)
        with pytest.raises(ChecksumRefused):
            await store.put_segment(base + "s", trailed(data, checksum=crc32c(data) ^ 1))
        assert await _nothing_at(store, base + "s")

    @on_store
    async def test_a_source_of_another_length_is_refused(self, store: ObjectStore, base: str, place: Place) -> None:
        """A source that ends early or goes on is never stored, not even cut."""
        data = bytes(200_000)
        for size in (199_999, 200_001):
            body = Upload(size, crc32c(bytes(size)), lambda: iter((data[:100_000], data[100_000:])))
            for either in (body, trailed(data, size=size, piece=100_000)):
                with pytest.raises(ChecksumRefused):
                    await store.put_segment(base + "s", either)
        assert await _nothing_at(store, base + "s")

    @on_store
    async def test_a_source_that_fails_is_not_the_stores_fault(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """Rot found while reading the source comes out as Corrupt, and nothing is stored, also where the rot is found
        in the pass that sends (C12)."""

        def rotten() -> Iterator[Buffer]:
            yield bytes(100_000)
            raise Corrupt("batch at offset 7: CRC")

        for checksum in (0, None):
            with pytest.raises(Corrupt):
                await store.put_segment(base + "s", Upload(200_000, checksum, rotten, lambda: 0))
        assert await _nothing_at(store, base + "s")

    @on_store
    async def test_an_empty_object_is_an_object(self, store: ObjectStore, base: str, place: Place) -> None:
        """Size 0 goes in and comes out; no range of it exists."""
        await store.put_segment(base + "empty", upload_of(b""))
        got = await store.get(base + "empty")
        assert (got.data, got.size) == (b"", 0)
        with pytest.raises(InvalidRequest):
            await store.get(base + "empty", 0, 1)

    @on_store
    async def test_immutable_names_are_not_reused(self, store: ObjectStore, base: str, place: Place) -> None:
        """T1: where the store can see it, a second object under a name is refused and the first stays."""
        if not place.refuses_reused_names:
            pytest.skip("a plain PUT replaces; names carry an epoch and a UUID")
        await store.put_segment(base + "s", upload_of(b"first"))
        with pytest.raises(InvalidRequest):
            await store.put_segment(base + "s", upload_of(b"second"))
        assert (await store.get(base + "s")).data == b"first"

    @on_store
    async def test_a_listing_is_in_key_order_below_its_prefix(
        self, store: ObjectStore, base: str, place: Place
    ) -> None:
        """Byte order of whole keys, as S3 lists: '-' and '.' come before '/', and nothing else is listed."""
        keys = [base + name for name in ("a/b", "a-b", "a.b", "a/b.c/d", "a0", "b/a", "a/c", "aa/x", "a/b-c")]
        place.fill(keys, b"12345")
        listed = [info async for info in store.list(base)]
        assert [info.key for info in listed] == sorted(keys)
        assert {info.size for info in listed} == {5}
        for prefix in ("a", "a/", "a/b", "a/b.c", "b", "zz"):
            listed = [info async for info in store.list(base + prefix)]
            assert [info.key for info in listed] == sorted(key for key in keys if key.startswith(base + prefix))

    @on_store
    async def test_1001_objects_are_listed_and_deleted(self, store: ObjectStore, base: str, place: Place) -> None:
        """T11: more than a page of a listing, more keys than one request deletes."""
        keys = [f"{base}d{number % 7}/{number:05d}" for number in range(1001)]
        place.fill(keys, b"x")
        assert [info.key async for info in store.list(base)] == sorted(keys)
        await store.delete(keys[:-1])
        assert [info.key async for info in store.list(base)] == keys[-1:]

    @on_store
    async def test_deleting_what_is_not_there_is_fine(self, store: ObjectStore, base: str, place: Place) -> None:
        """A deletion may be repeated: missing keys are no error, and the others go."""
        await store.put_segment(base + "a/b/c", upload_of(b"x"))
        await store.delete([])
        await store.delete([base + "absent", base + "a/b/c", base + "a"])
        await store.delete([base + "a/b/c"])
        assert [info async for info in store.list(base)] == []
        await store.put_segment(base + "a/b/d", upload_of(b"y"))
        assert (await store.get(base + "a/b/d")).data == b"y"

    @on_store
    async def test_hostile_keys_are_refused_everywhere(self, store: ObjectStore, base: str, place: Place) -> None:
        """No key leaves the bucket or touches its system directory, by any operation."""
        for key in HOSTILE_KEYS:
            operations: list[Callable[[], Awaitable[object]]] = [
                lambda key=key: store.get(key),  # type: ignore[misc]
                lambda key=key: store.get_if_changed(key, None),  # type: ignore[misc]
                lambda key=key: store.head(key),  # type: ignore[misc]
                lambda key=key: store.put_segment(key, upload_of(b"x")),  # type: ignore[misc]
                lambda key=key: store.put_root(key, b"x", None),  # type: ignore[misc]
                lambda key=key: store.delete([base + "fine", key]),  # type: ignore[misc]
            ]
            for operation in operations:
                with pytest.raises(InvalidRequest):
                    await operation()

    @on_store
    async def test_odd_keys_are_kept_as_they_are(self, store: ObjectStore, base: str, place: Place) -> None:
        """Nothing is lost to URL quoting."""
        for key in ODD_KEYS:
            await store.put_segment(base + key, upload_of(key.encode()))
        assert [info.key async for info in store.list(base)] == sorted(base + key for key in ODD_KEYS)
        for key in ODD_KEYS:
            assert (await store.get(base + key)).data == key.encode()
        await store.delete([base + key for key in ODD_KEYS])
        assert [info async for info in store.list(base)] == []

    @on_store
    async def test_racing_writers_have_one_winner(self, store: ObjectStore, base: str, place: Place) -> None:
        """C23: eight writers replace one root at once, again and again; each round exactly one succeeds."""
        key = base + "root.json"
        etag: str | None = None
        for number in range(6):

            async def write(who: int, number: int = number, etag: str | None = etag) -> str | None:
                try:
                    return await store.put_root(key, f"{number} {who}".encode() * 1000, etag)
                except (PreconditionFailed, ConditionalConflict):
                    return None

            answers = await asyncio.gather(*(write(who) for who in range(8)))
            winners = [who for who, answer in enumerate(answers) if answer is not None]
            assert len(winners) == 1
            got = await store.get(key)
            assert got.data == f"{number} {winners[0]}".encode() * 1000
            etag = answers[winners[0]]
            assert got.etag == etag

    @on_store
    async def test_the_probe_and_the_race_pass(self, store: ObjectStore, base: str, place: Place) -> None:
        """A store that passes these tests passes its own examination, which leaves nothing behind."""
        report = await probe(store, SeededRng(base))
        report.require()
        verified_by_head = place.checks_checksums and place.keeps_checksums
        assert report.verification is (Verification.HEAD if verified_by_head else Verification.READ_BACK)
        raced = await race(store, SeededRng("race" + base))
        raced.require()
        assert raced.winners == (1,) * 10
        assert [info async for info in store.list(".probe/")] == []
