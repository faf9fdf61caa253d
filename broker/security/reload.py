"""Reload of certificates, keys and users: a running broker reads their files again.

A new file that cannot be used is refused, and the old content stays in use. Each file reports its outcome. One reload
runs at a time. Certificates are also compared every ten seconds (`Certificates.keep`); keys of the bucket and PLAIN
users are read only by a reload.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from logformat.errors import ThermoclineError
from seams.loop.workers import Workers

log = logging.getLogger(__name__)


class Outcome(Enum):
    LOADED = "loaded"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


class Reloaded(msgspec.Struct, frozen=True):
    """The outcome for one file. `says` describes the content in use, or why the new content is refused."""

    what: str
    outcome: Outcome
    says: str


class Watched(Protocol):
    @property
    def where(self) -> str:
        """Name of the file in messages."""
        ...

    @property
    def says(self) -> str:
        """Description of the content in use, without secrets."""
        ...

    def reload(self) -> bool:
        """Read the file again. Returns whether the content changed. Blocking. If the new content cannot be used, this
        raises ThermoclineError, and the old content stays in use.
        """
        ...


class Reload:
    """The reload of one broker."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._why: dict[str, str] = {}  # reasons of refusals, by `where`, until the file can be used
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[Reloaded] | None = None  # the last file that was begun

    def add(self, *watched: Watched) -> None:
        self._watched.extend(watched)

    async def run(self, workers: Workers, only: Sequence[Watched] | None = None) -> list[Reloaded]:
        """Read the files in `only` again; all files if it is None."""
        async with self._lock:
            found = self._watched if only is None else only
            return [await self._alone(workers, one) for one in tuple(found)]

    async def _alone(self, workers: Workers, watched: Watched) -> Reloaded:
        """Reload one file, after a file whose reload was cancelled: its thread goes on, and would put what it read
        earlier in the place of newer content."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
        self._reading = asyncio.get_running_loop().create_task(workers.run(self._reloaded, watched))
        return await asyncio.shield(self._reading)

    async def asked(self, workers: Workers, by: str) -> list[Reloaded]:
        """Read all files again on an operator's request, and log the outcome. `by`: source of the request."""
        found = await self.run(workers)
        for one in found:
            level = logging.ERROR if one.outcome is Outcome.REFUSED else logging.INFO
            log.log(level, "reload (%s): %s: %s (%s)", by, one.what, one.outcome.value, one.says)
        if not found:
            log.info("reload (%s): no certificate, key or user of this broker comes from a file", by)
        return found

    def refused(self) -> tuple[str, ...]:
        """The files whose new content could not be used, each with the reason."""
        return tuple(self._why.values())

    def _reloaded(self, watched: Watched) -> Reloaded:
        """Reload one file. Blocking. A reason is logged once."""
        try:
            changed = watched.reload()
        except ThermoclineError as refused:
            if self._why.get(watched.where) != str(refused):
                log.error("%s: the new content is refused, the old one stays in use: %s", watched.where, refused)
            self._why[watched.where] = str(refused)
            return Reloaded(watched.where, Outcome.REFUSED, f"the old one stays in use: {refused}")
        self._why.pop(watched.where, None)
        return Reloaded(watched.where, Outcome.LOADED if changed else Outcome.UNCHANGED, watched.says)
