"""Every compare-and-set of a broker's life, each gone wrong in every way that one can."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from coldstore.manifest.manifest_store import ManifestStore
from seams.rng import SeededRng
from tests.sim.checks.checker import Finding
from tests.sim.scripted import script
from tests.sim.scripted.cas_sites import SiteStore, Wrong
from tests.sim.scripted.script import Story
from tests.sim.world.cluster import Cluster
from tests.sim.world.loop import SimLoop
from tests.support.store.memory_store import MemoryStore

SITES = (
    "cluster claim",
    "cluster delta",
    "lease",
    "lease release",
    "manifest create",
    "manifest claim",
    "manifest reserve",
    "manifest add",
    "manifest log start",
    "manifest expire",
    "manifest fold",
    "manifest snapshot",
    "manifest release",
)
ROOT_BYTES = 4200  # small roots, so that a short life folds its tail into pages


@contextmanager
def small_roots() -> Iterator[None]:
    defaults = ManifestStore.__init__.__kwdefaults__
    with mock.patch.dict(defaults, {"root_bytes_max": ROOT_BYTES}):
        yield


def live(target: tuple[str, int, Wrong] | None) -> tuple[Counter[str], int, list[Finding]]:
    """(sites seen, how often the fault struck, findings) of one life: the script, a clean stop, a second start."""
    sites: Counter[str] = Counter()
    struck = 0
    found: list[Finding] = []

    async def act(loop: SimLoop) -> Cluster:
        nonlocal struck
        cluster = Cluster(loop, "cas", directory_bucket=False, settings=script.SETTINGS)
        store = cluster.store = SiteStore(MemoryStore(), SeededRng("cas/store"), target)
        story = Story(cluster)
        await script.play(story)
        if story.tail.last is None or story.tail.last[0] != script.BATCHES - 1:
            found.append(Finding("writes-stuck", f"the script got as far as batch {story.tail.last}"))
        node = story.node
        assert node is not None
        node.stop.set()
        async with asyncio.timeout(60.0):
            await asyncio.wait([node.main])
        if [code for _, _, code in cluster.exits] != [0]:
            found.append(Finding("exit", f"{cluster.exits} {cluster.failures}"))
        found.extend(await script.aftermath(story))
        sites.update(store.sites)
        struck = store.struck
        return cluster

    with small_roots():
        script.in_virtual_time(act)
    return sites, struck, found


@pytest.fixture(scope="module")
def counted() -> Counter[str]:
    """How often each site is written in a life without faults."""
    sites, _, found = live(None)
    assert not found, found
    return sites


def test_the_script_reaches_every_site(counted: Counter[str]) -> None:
    """Otherwise the matrix below would have holes."""
    missing = [site for site in SITES if not counted[site]]
    assert not missing, f"{missing} not among {dict(counted)}"


@pytest.mark.parametrize("site", SITES)
def test_any_answer_to_a_compare_and_set_keeps_every_promise(site: str, counted: Counter[str]) -> None:
    """Its first and its last occurrence, each with every fault; the life goes on to its end, nothing is lost."""
    failed = []
    for occurrence in sorted({0, counted[site] - 1}):
        for wrong in Wrong:
            _, struck, found = live((site, occurrence, wrong))
            if not struck:
                failed.append(f"{site} {occurrence}: {wrong.value}: never struck")
            failed += [f"{site} {occurrence}: {wrong.value}: {item.kind}: {item.detail[:300]}" for item in found[:3]]
    assert not failed, "\n".join(failed)
