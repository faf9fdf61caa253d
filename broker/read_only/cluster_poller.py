"""Polls `cluster.json` of another cluster for its newest image.

If the store does not answer, or `cluster.json` is damaged, missing or not a continuation of the last one, the known
image remains in use. A `cluster.json` of another cluster or of a newer format stops the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.membership.session_start import Refused
from broker.metadata.cluster_root import ClusterRoot, ImageAt, Loaded
from broker.metrics.outage_log import WHAT_TO_DO, OutageLog
from broker.observe.status import Health
from coldstore.object_store import AccessRefused
from coldstore.roots.root import RootVanished
from logformat.errors import Corrupt, Retryable
from logformat.values import NewerFormat
from seams.world import World

log = logging.getLogger(__name__)

POLL_S: Final = 5.0
_ANSWER_S: Final = 30.0
_WAIT_MAX_S: Final = 10.0  # longest pause between two attempts at the start


class ClusterPoller:
    """The poller of one bucket. `taken` is called with every newer image."""

    def __init__(self, cluster: ClusterRoot, world: World, outage: OutageLog, taken: Callable[[ImageAt], None]) -> None:
        self._cluster = cluster
        self._world = world
        self._taken = taken
        self._asked = asyncio.Event()
        self._polls = 0  # number of polls that ended
        self._began = 0
        self._polled = asyncio.Event()
        self.outage = outage
        self.loaded: Loaded | None = None
        """The newest image."""
        self.polled_s = float("-inf")
        """Start of the last answered poll, by the monotonic clock."""

    async def begin(self, health: Health) -> Loaded:
        """Wait until the bucket answers. Raises Refused if the bucket has no cluster, Corrupt, AccessRefused."""
        health.starting("reading cluster.json")
        wait_s = 0.2
        while True:
            began_s = self._world.clock.monotonic_s()
            try:
                loaded = await self._cluster.load()
            except Retryable as failure:
                if self.outage.failed(failure):
                    log.warning("not ready: the bucket does not answer (%s); %s", self.outage, WHAT_TO_DO)
            else:
                if loaded is None:
                    raise Refused(
                        "there is no cluster in this bucket; --read-only follows one that another broker serves: "
                        "check the URL and its prefix"
                    )
                self._answered(began_s)
                self.loaded = loaded
                return loaded
            await asyncio.sleep(wait_s * self._world.rng.uniform(0.8, 1.2))
            wait_s = min(wait_s * 2, _WAIT_MAX_S)

    async def keep(self) -> None:
        """Poll until cancelled. Raises NewerFormat or Refused when polling cannot continue."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._asked.wait()
            self._asked.clear()
            await self._poll()

    async def newer(self) -> None:
        """Wait for a poll that begins now or later. Raises Retryable or TimeoutError if the bucket did not answer that
        poll."""
        wanted = self._began + 1
        self._asked.set()
        async with asyncio.timeout(2 * _ANSWER_S):  # a poll may be in progress
            while self._polls < wanted:
                await self._polled.wait()
        if self.outage.tries:
            raise Retryable(f"cluster.json cannot be read: {self.outage}")

    async def _poll(self) -> None:
        began_s = self._world.clock.monotonic_s()
        self._began += 1
        try:
            async with asyncio.timeout(_ANSWER_S):
                loaded = await self._cluster.poll()
        except NewerFormat:
            raise
        except (Retryable, AccessRefused, TimeoutError, Corrupt, RootVanished) as failure:
            if self.outage.failed(failure):
                log.warning("cluster.json cannot be read (%s): the known image is served", self.outage)
        else:
            assert self.loaded is not None
            if loaded.cluster_id != self.loaded.cluster_id:
                raise Refused(f"cluster.json belongs to cluster {loaded.cluster_id}, not {self.loaded.cluster_id}")
            self._answered(began_s)
            self.loaded = loaded
            self._taken(loaded.at)
        self._polls = self._began
        looked, self._polled = self._polled, asyncio.Event()
        looked.set()

    def _answered(self, began_s: float) -> None:
        self.polled_s = began_s
        if lasted := self.outage.answered():
            log.info("cluster.json can be read again, after %s", lasted)
