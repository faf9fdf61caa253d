"""Loads and replaces a root in a bucket. It performs the I/O for `root_commit.Commit`.

Commits of one `RootStore` run one after the other. An attempt of unknown outcome is remembered until the root has a
later version (`settled`). Until then the objects that it names must not be deleted (C3). After a "slow down", writes of
the root are at least `THROTTLED_S` apart for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic

from coldstore.object_store import ObjectMissing, ObjectStore, StoreError, StoreThrottled
from coldstore.roots.root_commit import (
    Commit,
    Done,
    Effect,
    Event,
    Get,
    GetFailed,
    Put,
    PutAccepted,
    PutUnknown,
    PutWithheld,
    Refused,
    RootFound,
    Terms,
    Wait,
    Waited,
    continues,
)
from coldstore.roots.root_format import (
    ENVELOPE_BYTES_MAX,
    RING_LENGTH,
    ROOT_BYTES_MAX,
    NotClaimed,
    Root,
    RootCodec,
    RootFormat,
    RootMissing,
    RootTooLarge,
    RootVanished,
    T,
    Unsettled,
)
from coldstore.roots.root_reading import read_root
from logformat.errors import Corrupt, Retryable, ThermoclineError
from logformat.values import NewerFormat
from seams.clock import Clock
from seams.rng import Rng

__all__ = [
    "ENVELOPE_BYTES_MAX",
    "RING_LENGTH",
    "ROOT_BYTES_MAX",
    "NewerFormat",
    "NotClaimed",
    "Root",
    "RootCodec",
    "RootFormat",
    "RootMissing",
    "RootStore",
    "RootTooLarge",
    "RootVanished",
    "Unsettled",
]

DEADLINE_S: Final = 30.0
THROTTLED_S: Final = 1.1
"""Cloudflare R2 and GCS take one write of a key a second."""
THROTTLED_FOR_S: Final = 10.0
"""Time for which a "slow down" counts, because it may be temporary."""
_LAST_CALL_S: Final = 1.0  # least time for a call that begins near the deadline


class RootStore(Generic[T]):
    """The root under `key`. `kind`: see `RootCodec`."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        kind: type[T] | RootFormat[T],
        rng: Rng,
        clock: Clock,
        *,
        deadline_s: float = DEADLINE_S,
        validate: Callable[[Root[T]], None] | None = None,
        on_newer: Callable[[Root[T]], None] = lambda _: None,
    ) -> None:
        """`deadline_s`: longest time of a commit, including its wait for earlier commits. `validate`: see `RootCodec`.
        `on_newer` is called at once with each root that becomes the known one."""
        self._store = store
        self._key = key
        self._codec = RootCodec(kind, validate)
        self._rng = rng
        self._clock = clock
        self._deadline_s = deadline_s
        self._on_newer = on_newer
        self._known: Root[T] | None = None
        self._unsettled_version = 0
        self._under_way: Commit[T] | None = None
        self._commits = asyncio.Lock()
        self._put_s = float("-inf")
        self._slow_until_s = float("-inf")  # until then PUTs are THROTTLED_S apart

    @property
    def key(self) -> str:
        return self._key

    @property
    def known(self) -> Root[T] | None:
        """The newest root that this process has read. The store may have a newer one."""
        return self._known

    @property
    def settled(self) -> bool:
        """Whether every attempt of this process is in `known`, or cannot arrive any more, except one under way."""
        return self._unsettled_version == 0

    @property
    def pending(self) -> bool:
        """Whether an attempt of this process, perhaps one under way, may be stored without being in `known`."""
        return not self.settled or (self._under_way is not None and self._under_way.unsettled_version is not None)

    def content_size(self, content: T) -> int:
        """Bytes of `content` in the root. Their sum with `ENVELOPE_BYTES_MAX` must not exceed `ROOT_BYTES_MAX`."""
        return self._codec.content_size(content)

    async def load(self) -> Root[T] | None:
        """The current root; None if there is none. Raises RootVanished if there was one before, StoreError if the store
        does not answer, Corrupt, NewerFormat."""
        found = await self._read()
        return self._learn(found)

    async def load_if_changed(self) -> Root[T] | None:
        """The root if it changed (by a conditional GET), else None. Raises the errors of `load`."""
        known = self._known
        if known is None:
            return await self.load()
        try:
            got = await self._store.get_if_changed(self._key, known.etag)
            found = None if got is None else self._codec.decode(self._key, got)
        except ObjectMissing:
            return self._learn(None)
        except (Corrupt, NewerFormat):
            return await self.load()
        return None if found is None else self._learn(found)

    async def commit(
        self,
        edit: Callable[[T], T],
        *,
        epoch: int,
        claim: bool = False,
        exclusive: bool = False,
        initial: T | None = None,
        may_send: Callable[[], None] | None = None,
    ) -> Root[T]:
        """Apply `edit` to the root as a writer of `epoch`. Returns the newest known root with this edit.

        The edit is pure, and idempotent by the ids that it names. It may be called several times. An error that it
        raises on the newest root is raised here. With `claim` the root's epoch may rise to `epoch`. With `exclusive` a
        root that has `epoch` already is refused as another writer's claim. If there is no root, `initial` is edited.
        `may_send` is called before each PUT, also before a resend. A ThermoclineError that it raises ends the commit.

        If the returned root's epoch is above `epoch`, the commit succeeded, and another writer claimed the root after
        it. Raises Fenced (the root has a higher epoch, or vanished), NotClaimed, RootMissing, RootTooLarge, Retryable
        (nothing is pending), Unsettled (an attempt may still arrive), Corrupt, NewerFormat, AccessRefused."""
        deadline_s = self._clock.monotonic_s() + self._deadline_s
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._commits.acquire()
        except TimeoutError as late:
            raise Retryable(f"root {self._key}: an earlier commit is still under way") from late
        try:
            machine = Commit(
                self._key,
                self._codec,
                Terms(edit, epoch, claim, exclusive, initial),
                new_id=lambda: self._rng.uuid().hex,
                jitter=lambda: self._rng.uniform(0.5, 1.5),
                deadline_s=deadline_s,
            )
            return await self._run(machine, deadline_s, may_send)
        finally:
            self._commits.release()

    async def _run(self, machine: Commit[T], deadline_s: float, may_send: Callable[[], None] | None) -> Root[T]:
        effect, self._under_way = machine.start(self._known), machine
        try:
            while not isinstance(effect, Done | Refused):
                event = await self._perform(effect, deadline_s, may_send)
                effect = machine.step(event, self._clock.monotonic_s())
        finally:
            # This also runs after a cancellation or an error in the middle of a PUT.
            self._unsettled_version = max(self._unsettled_version, machine.unsettled_version or 0)
            self._under_way = None
        if isinstance(effect, Refused):
            raise effect.error
        found = self._learn(effect.root)
        assert found is not None
        return found

    async def _perform(self, effect: Effect[T], deadline_s: float, may_send: Callable[[], None] | None) -> Event[T]:
        left_s = max(deadline_s - self._clock.monotonic_s(), _LAST_CALL_S)
        match effect:
            case Wait(seconds):
                await asyncio.sleep(seconds)
                return Waited()
            case Put(data, if_match):
                now_s = self._clock.monotonic_s()
                if now_s < self._slow_until_s and (early_s := self._put_s + THROTTLED_S - now_s) > 0:
                    await asyncio.sleep(early_s)
                self._put_s = self._clock.monotonic_s()
                try:
                    if may_send is not None:
                        may_send()
                except ThermoclineError as withheld:
                    return PutWithheld(withheld)
                try:
                    async with asyncio.timeout(left_s):
                        etag = await self._store.put_root(self._key, data, if_match)
                except (StoreError, ObjectMissing, TimeoutError) as unknown:
                    if isinstance(unknown, StoreThrottled):
                        self._slow_until_s = self._clock.monotonic_s() + THROTTLED_FOR_S
                    return PutUnknown(f"{type(unknown).__name__}: {unknown}")
                return PutAccepted(etag) if etag else PutUnknown("the store answered 200 without an ETag")
            case Get():
                try:
                    async with asyncio.timeout(left_s):
                        found = await self._read()
                except (StoreError, TimeoutError) as failed:
                    return GetFailed(f"{type(failed).__name__}: {failed}")
                if found is not None and (self._known is None or continues(self._known, found)):
                    self._note(found)
                return RootFound(found)
            case _:
                raise AssertionError(f"{effect} ends a commit and has nothing to perform")

    async def _read(self) -> Root[T] | None:
        try:
            return await read_root(self._store, self._key, self._codec.decode)
        except ObjectMissing:
            return None

    def _learn(self, found: Root[T] | None) -> Root[T] | None:
        """Make `found` the known root, unless a newer one is known: the answers of two reads may arrive out of
        order."""
        known = self._known
        if found is None:
            if known is not None:
                raise RootVanished(f"root {self._key} was at version {known.version} and is gone; stop using it")
            return None
        if known is not None and found.version >= known.version and not continues(known, found):
            raise Corrupt(
                f"root {self._key} at version {found.version} does not continue version {known.version} as it was seen "
                "before; was the bucket restored to an earlier state?"
            )
        self._note(found)
        return self._known

    def _note(self, found: Root[T]) -> None:
        # An attempt for version v is conditional on version v − 1. Once version v exists, the attempt either made it,
        # or cannot succeed any more.
        if found.version >= self._unsettled_version:
            self._unsettled_version = 0
        known = self._known
        if known is None or found.version > known.version:
            self._known = found
            self._on_newer(found)
        elif found.version == known.version:
            self._known = found  # after a `rewrap` the same content has another ETag
