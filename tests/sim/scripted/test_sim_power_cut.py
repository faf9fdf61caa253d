"""The power goes at every effect on the disk of a produce-roll-copy-expire life, and the broker comes back.

The directory bucket lies on the same disk, so the cut hits it too. A run records the disk before effects; each of those
moments is cut with two kept subsets of what was unsynced, and a new broker is started on what survived. The script is
played anew for every `MOMENTS_AT_ONCE` of them, which it can be because it is the same each time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest

from seams.clock import SystemClock
from seams.rng import SeededRng
from tests.sim.checks.checker import Finding
from tests.sim.checks.history import Event
from tests.sim.scripted import script
from tests.sim.scripted.script import Story, Tail
from tests.sim.world.cluster import Cluster
from tests.sim.world.loop import SimLoop
from tests.support.disk.crash_disk import CrashDisk

KEEPS = (0.0, 0.5)
CUTS_IN_MAKE_TEST = 220  # of about 2 000; `make test-all` cuts at every one
MOMENTS_AT_ONCE = 110  # two disks each, which grow while a broker lives on them: all of them at once were 7 GB


@dataclass
class Moment:
    """Just before an effect: what a power cut leaves, what clients knew."""

    effect: str
    disks: list[CrashDisk]
    events: list[Event]
    tail: Tail
    now_s: float


def record(flush: str, wanted: range) -> tuple[int, list[Moment]]:
    """Play the script once; the disk is cut, in thought, before every effect whose number is `wanted`."""
    moments: list[Moment] = []
    count = 0

    async def act(loop: SimLoop) -> Cluster:
        nonlocal count
        settings = (*script.SETTINGS, f"thermocline.flush={flush}")
        story = Story(Cluster(loop, "cut", directory_bucket=True, settings=settings))

        def before(kind: str, path: str) -> None:
            nonlocal count
            if count in wanted:
                disks = [story.cluster.machines[0].disk.crash(SeededRng(f"{count}/{keep}"), keep) for keep in KEEPS]
                moments.append(Moment(f"{kind} {path}", disks, story.known(), copy.copy(story.tail), loop.time()))
            count += 1

        story.cluster.machines[0].disk.on_effect = before
        await script.play(story)
        return story.cluster

    script.in_virtual_time(act)
    return count, moments


def restart(moment: Moment, disk: CrashDisk, flush: str) -> list[Finding]:
    """A new broker on what survived; every promise checked over both lives."""
    found: list[Finding] = []

    async def act(loop: SimLoop) -> Cluster:
        loop._now = moment.now_s
        settings = (*script.SETTINGS, f"thermocline.flush={flush}")
        cluster = Cluster(loop, "after", directory_bucket=True, settings=settings)
        cluster.machines[0].disk, cluster.machines[0].boots = disk, 2
        story = Story(cluster, script.copied(moment.events), copy.copy(moment.tail))
        found.extend(await script.aftermath(story, lossy=flush == "os"))
        return cluster

    script.in_virtual_time(act)
    return found


def cut_everywhere(flush: str, cuts_max: int) -> tuple[int, int, list[str]]:
    """(effects, restarts, findings). Evenly sampled when there are more than `cuts_max` restarts."""
    effects, _ = record(flush, range(0))
    numbers = range(0, effects, max(1, -(-effects * len(KEEPS) // cuts_max)))
    failed: list[str] = []
    restarts = 0
    for first in range(0, len(numbers), MOMENTS_AT_ONCE):
        again, moments = record(flush, numbers[first : first + MOMENTS_AT_ONCE])
        assert again == effects, "the script is not the same twice"
        for moment in moments:
            at = f"cut at {moment.now_s:.3f} s before {moment.effect}"
            for keep in KEEPS:
                restarts += 1
                found = restart(moment, moment.disks.pop(0), flush)
                failed += [f"{at}, keeps {keep}: {finding.kind}: {finding.detail}" for finding in found]
    return effects, restarts, failed


def test_simulated_uploads_read_no_real_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the parts of an upload depended on the real duration of simulated syncs. On a busy machine the same
    script had 1 077 to 1 081 effects."""

    def monotonic_s(_: SystemClock) -> float:
        raise AssertionError("a simulated broker reads the machine's clock")

    monkeypatch.setattr(SystemClock, "monotonic_s", monotonic_s)
    assert record("sync", range(0))[0] > 1000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flush", ["sync", "os"])
def test_a_power_cut_at_any_effect_loses_nothing_promised(flush: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Evenly sampled effects; in `os` mode offsets are never given twice, in `sync` mode nothing is lost."""
    effects, restarts, failed = cut_everywhere(flush, CUTS_IN_MAKE_TEST)
    with capsys.disabled():
        print(f"\n{flush}: {restarts} restarts after power cuts, of {effects} effects x {len(KEEPS)} kept subsets")
    assert restarts > 100
    assert not failed, "\n".join(failed[:20])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush", ["sync", "os"])
def test_a_power_cut_at_every_effect_loses_nothing_promised(flush: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every single one."""
    effects, restarts, failed = cut_everywhere(flush, 1 << 30)
    with capsys.disabled():
        print(f"\n{flush}: {restarts} restarts after power cuts, of {effects} effects x {len(KEEPS)} kept subsets")
    assert restarts == effects * len(KEEPS)
    assert not failed, "\n".join(failed[:20])
