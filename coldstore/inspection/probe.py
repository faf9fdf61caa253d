"""Checks that a store fulfils the conditions of the cold tier: `probe` at each start, `race` when a bucket is
formatted.

A refusal names the broken condition. An unavailable or busy store is not refused: StoreUnavailable and AccessRefused
are raised unchanged. The result decides how copies are verified, because some stores accept any checksum (C12). Some
stores pass every sequential test but let every racing writer win. `race` detects them (C23). All objects are written
below `.probe/<uuid>/` and deleted at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import Enum
from urllib.parse import parse_qs, urlsplit

import msgspec
from crc32c import crc32c

from coldstore.object_store import (
    ChecksumRefused,
    ObjectMissing,
    ObjectStore,
    StoreAway,
    StoreError,
    StoreUnavailable,
    Upload,
)
from coldstore.retrying_store import RetryingStore, tries
from logformat.errors import InvalidRequest, ThermoclineError
from seams.rng import Rng

PREFIX = ".probe"
RACE_WRITERS = 8
RACE_ROUNDS = 10
_SEGMENT_BYTES = 512 << 10  # above the size up to which a directory bucket computes the CRC32C itself
_RACE_BYTES = 16 << 10

_PROVIDERS = (
    ("amazonaws.com", "Amazon S3"),
    ("r2.cloudflarestorage.com", "Cloudflare R2"),
    ("googleapis.com", "Google Cloud Storage"),
    ("backblazeb2.com", "Backblaze B2"),
    ("digitaloceanspaces.com", "DigitalOcean Spaces"),
    ("wasabisys.com", "Wasabi"),
    ("linodeobjects.com", "Akamai Object Storage"),
    ("scw.cloud", "Scaleway"),
    ("fly.storage.tigris.dev", "Tigris"),
)


class StoreRefused(InvalidRequest):
    """The store breaks a condition, so data could be lost. The remedy is another store, or a newer version of this
    one."""


class StoreCondition(Enum):
    """A probed condition. The value is its printed form."""

    CREATE = "If-None-Match creates"
    CREATE_ONCE = "If-None-Match refuses a second create"
    REPLACE = "If-Match replaces"
    STALE = "a stale If-Match is refused"
    ABSENT = "If-Match on a missing key is refused"
    UNCHANGED = "a conditional GET tells unchanged from changed"
    RANGE = "a ranged GET answers its range"
    TAIL = "a tail GET answers the end"
    LISTED = "a listing shows what was put"
    DELETED = "a deletion deletes"
    CHECKSUM = "a wrong CRC32C is refused"
    TRAILER = "a CRC32C may come behind the bytes"


# If CHECKSUM fails, copies are read back completely. If TRAILER fails, a segment is read twice for its upload. If any
# other condition fails, the store is refused.
OPTIONAL = frozenset({StoreCondition.CHECKSUM, StoreCondition.TRAILER})


class Verification(Enum):
    """The proof of a copy that is needed before local bytes may be deleted."""

    HEAD = "HEAD (size and CRC32C)"
    READ_BACK = "whole read-back"


class ProbeFinding(msgspec.Struct, frozen=True):
    """The result for one condition. `detail`: the observation if it failed."""

    condition: StoreCondition
    passed: bool
    detail: str = ""


class ProbeReport(msgspec.Struct, frozen=True):
    """Result of the probe. `takes_trailers`: the store accepts a checksum after the bytes."""

    url: str
    provider: str
    findings: tuple[ProbeFinding, ...]
    verification: Verification

    @property
    def takes_trailers(self) -> bool:
        return any(finding.condition is StoreCondition.TRAILER and finding.passed for finding in self.findings)

    @property
    def passed(self) -> bool:
        return all(finding.passed or finding.condition in OPTIONAL for finding in self.findings)

    def require(self) -> None:
        """Raise StoreRefused unless the store passed."""
        failed = [f for f in self.findings if not f.passed and f.condition not in OPTIONAL]
        if failed:
            why = "; ".join(f"{f.condition.value}: {f.detail}" for f in failed)
            raise StoreRefused(f"{self.provider} at {self.url} cannot hold a log. Failed: {why}")


class RaceReport(msgspec.Struct, frozen=True):
    """The number of winners of each round, which must be 1."""

    url: str
    winners: tuple[int, ...]

    @property
    def passed(self) -> bool:
        return all(count == 1 for count in self.winners)

    def require(self) -> None:
        """Raise StoreRefused unless every round had one winner."""
        if not self.passed:
            raise StoreRefused(
                f"{provider_of(self.url)} at {self.url} loses races: {RACE_WRITERS} conditional writers had "
                f"{list(self.winners)} winners a round. Two brokers would overwrite each other's manifests"
            )


def provider_of(url: str) -> str:
    """The probable provider of the store behind a printed bucket URL."""
    split = urlsplit(url)
    if split.scheme == "file":
        return "a directory"
    if split.scheme != "s3":
        return "an unknown store"
    endpoint = parse_qs(split.query).get("endpoint", [""])[0]
    host = urlsplit(endpoint).hostname or ""
    if not endpoint:
        return "Amazon S3"
    return next((name for suffix, name in _PROVIDERS if host.endswith(suffix)), f"an S3-compatible store ({host})")


async def probe(
    store: ObjectStore, rng: Rng, refused: Callable[[StoreUnavailable], None] = lambda _: None
) -> ProbeReport:
    """Check every condition, one after the other (about 25 requests). `refused`: see `RetryingStore`."""
    store = RetryingStore(store, refused)
    run = _Probe(store, f"{PREFIX}/{rng.uuid()}")
    try:
        if await run.roots():
            await run.segments()
            await run.deletion()
    finally:
        with contextlib.suppress(ThermoclineError):
            await store.delete(run.written)
    return ProbeReport(store.url, provider_of(store.url), tuple(run.findings), run.verification)


async def race(
    store: ObjectStore, rng: Rng, refused: Callable[[StoreUnavailable], None] = lambda _: None
) -> RaceReport:
    """Let `RACE_WRITERS` writers write one key at once, in `RACE_ROUNDS` rounds: in turn they create it and replace it.
    `refused`: as in `probe`."""
    store = RetryingStore(store, refused)
    base = f"{PREFIX}/{rng.uuid()}"
    winners: list[int] = []
    etag: str | None = None
    keys = [f"{base}/{number}" for number in range((RACE_ROUNDS + 1) // 2)]
    try:
        for number in range(RACE_ROUNDS):
            creates = number % 2 == 0
            count, etag = await _race_round(store, keys[number // 2], None if creates else etag, rng)
            winners.append(count)
    finally:
        with contextlib.suppress(ThermoclineError):
            await store.delete(keys)
    return RaceReport(store.url, tuple(winners))


async def _race_round(store: ObjectStore, key: str, etag: str | None, rng: Rng) -> tuple[int, str]:
    """The number of winners, and the current ETag. A writer whose answer was lost counts as a winner if its bytes are
    stored."""
    async for _ in tries():
        bodies = [rng.uuid().bytes * (_RACE_BYTES // 16) for _ in range(RACE_WRITERS)]
        answers = await asyncio.gather(*(_attempt(store, key, body, etag) for body in bodies))
        found = await _content(store, key)
        won = [body for body, answer in zip(bodies, answers, strict=True) if answer is not None]
        if found is not None and (won or found[0] in bodies):
            # A winner whose bytes are gone was overwritten by another winner.
            lost = sum(1 for body in won if body != found[0])
            return lost + 1, found[1]
    raise StoreUnavailable(f"{store.url}: none of the racing writes succeeded; try again when the store answers")


async def _attempt(store: ObjectStore, key: str, data: bytes, etag: str | None) -> str | None:
    try:
        return await store.put_root(key, data, etag)
    except StoreError:
        return None


async def _content(store: ObjectStore, key: str) -> tuple[bytes, str] | None:
    try:
        got = await store.get(key)
    except ObjectMissing:
        return None
    return got.data, got.etag


class _Probe:
    """One run of the probe: the written objects, and the findings so far."""

    def __init__(self, store: ObjectStore, base: str) -> None:
        self._store = store
        self._root, self._absent = f"{base}/root", f"{base}/absent"
        self._segment, self._wrong = f"{base}/segment", f"{base}/wrong"
        self._trailed, self._wrong_trailer = f"{base}/trailed", f"{base}/wrong-trailer"
        self.written = [self._root, self._absent, self._segment, self._wrong, self._trailed, self._wrong_trailer]
        self.findings: list[ProbeFinding] = []
        self.verification = Verification.READ_BACK

    def _found(self, condition: StoreCondition, problem: str | None) -> bool:
        self.findings.append(ProbeFinding(condition, problem is None, problem or ""))
        return problem is None

    async def roots(self) -> bool:
        """Check conditional writes. Returns False if the store does not support them, which ends the probe."""
        first, problem = await self._written(self._root, b"first", None)
        if not self._found(StoreCondition.CREATE, problem):
            return False
        self._found(StoreCondition.CREATE_ONCE, await self._refused(self._root, b"second", None, b"first"))
        second, problem = await self._written(self._root, b"third", first)
        if not self._found(StoreCondition.REPLACE, problem):
            return False
        self._found(StoreCondition.STALE, await self._refused(self._root, b"fourth", first, b"third"))
        self._found(StoreCondition.ABSENT, await self._refused(self._absent, b"fifth", second, None))
        unchanged = await self._store.get_if_changed(self._root, second)
        changed = await self._store.get_if_changed(self._root, first)
        fine = unchanged is None and changed is not None and changed.data == b"third"
        self._found(StoreCondition.UNCHANGED, None if fine else "the answers do not depend on the ETag")
        return True

    async def segments(self) -> None:
        """Check objects, ranges and checksums."""
        data = bytes(range(256)) * (_SEGMENT_BYTES // 256)
        info = await self._store.put_segment(self._segment, _upload(data, crc32c(data)))
        self._found(StoreCondition.RANGE, await _same(lambda: self._bytes(10_000, 4096), data[10_000:14_096]))
        self._found(StoreCondition.TAIL, await _same(lambda: self._bytes(-1000, None), data[-1000:]))
        try:
            await self._store.put_segment(self._wrong, _upload(data, crc32c(data) ^ 1))
        except ChecksumRefused:
            refused = self._found(StoreCondition.CHECKSUM, None)
        except InvalidRequest as failure:
            refused = self._found(StoreCondition.CHECKSUM, f"answered {failure}")
        else:
            refused = self._found(
                StoreCondition.CHECKSUM, "an object with a wrong CRC32C was stored; copies will be read back"
            )
        kept = (await self._store.head(self._segment)).crc32c
        if refused and kept == crc32c(data) and info.size == len(data):
            self.verification = Verification.HEAD
        self._found(StoreCondition.TRAILER, await self._trailer_taken(data))

    async def _trailer_taken(self, data: bytes) -> str | None:
        """The reason why a checksum after the bytes cannot be used; None if it can. Without it, checksums are sent
        before the bytes."""
        try:
            await self._store.put_segment(self._trailed, _trailed(data, crc32c(data)))
            got = await self._store.get(self._trailed)
            kept = (await self._store.head(self._trailed)).crc32c
        except ThermoclineError as failure:
            return str(failure)
        if got.data != data:
            return f"{len(got.data)} bytes were stored, not the {len(data)} sent"
        if self.verification is Verification.HEAD and kept != crc32c(data):
            return f"HEAD answers the CRC32C {kept}"
        try:
            await self._store.put_segment(self._wrong_trailer, _trailed(data, crc32c(data) ^ 1))
        except ChecksumRefused:
            return None
        except ThermoclineError as failure:
            return f"a wrong CRC32C fails with another error: {failure}"
        return "an object with a wrong CRC32C was stored"

    async def deletion(self) -> None:
        """Check listings and deletions."""
        base = self._root.rpartition("/")[0] + "/"
        expected = {self._root: 5, self._segment: _SEGMENT_BYTES}
        found = {info.key: info.size async for info in self._store.list(base) if info.key in expected}
        missing = [key for key, size in expected.items() if found.get(key) != size]
        self._found(StoreCondition.LISTED, f"{missing[0]} is missing or has another size" if missing else None)
        await self._store.delete(self.written)
        left = [info.key async for info in self._store.list(base)]
        self._found(StoreCondition.DELETED, f"{left[0]} is still listed" if left else None)

    async def _bytes(self, start: int, length: int | None) -> bytes:
        return (await self._store.get(self._segment, start, length)).data

    async def _written(self, key: str, data: bytes, etag: str | None) -> tuple[str, str | None]:
        """Do a write that must succeed. Returns its ETag, and the fault or None. Raises StoreAway if no attempt got an
        answer."""
        problem: StoreError | InvalidRequest | None = None
        async for _ in tries():
            try:
                new = await self._store.put_root(key, data, etag)
            except (StoreError, InvalidRequest) as failure:
                problem = failure
            else:
                got = await self._store.get(key)
                return new, None if got.data == data and got.etag == new else "a read returned other bytes"
            found = await _content(self._store, key)  # raises an error if the store does not answer
            if found is not None and found[0] == data:
                return found[1], None  # the write succeeded, and its answer was lost
        if isinstance(problem, StoreAway):
            raise problem
        return "", str(problem)

    async def _refused(self, key: str, data: bytes, etag: str | None, before: bytes | None) -> str | None:
        """Do a write that must be refused and change nothing. Returns the fault, or None. Any error counts as a
        refusal, because losers may get a 500. Raises StoreAway if no answer arrived."""
        away: StoreAway | None = None
        async for _ in tries():
            try:
                await self._store.put_root(key, data, etag)
            except StoreAway as failure:
                away = failure
            except (StoreError, InvalidRequest):
                away = None
                break
            else:
                return "the write succeeded"
        if away is not None:
            raise away
        found = await _content(self._store, key)
        return None if (found[0] if found is not None else None) == before else "refused, but the object changed"


async def _same(read: Callable[[], Awaitable[bytes]], expected: bytes) -> str | None:
    try:
        got = await read()
    except InvalidRequest as failure:
        return str(failure)
    return None if got == expected else f"the store answered {len(got)} other bytes than the {len(expected)} requested"


def _upload(data: bytes, checksum: int) -> Upload:
    return Upload(len(data), checksum, lambda: iter((data,)))


def _trailed(data: bytes, checksum: int) -> Upload:
    return Upload(len(data), None, lambda: iter((data,)), lambda: checksum)
