"""`cluster restore --yes`: looks and requests, until every partition serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, cast

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.metadata.image import ClusterImage
from broker.wire.messages import AlterPartitionReassignmentsResponse, UnregisterBrokerResponse
from tests.support.fast_loop import HOUR_S, run_fast
from tests.unit.cli.cluster.test_cli_restore_plan import ALL_LOST, HELD, brokers
from thermocline.cli.clients.wire_client import BrokerUnreachable
from thermocline.cli.cluster.restore import executor
from thermocline.cli.cluster.restore.bucket_state import ClusterSnapshot
from thermocline.cli.cluster.restore.command import _print_report
from thermocline.cli.cluster.restore.executor import PATIENCE_S, Ends, LiveBrokers, RestoreRun
from thermocline.cli.cluster.restore.plan import StoredPartition, plan
from thermocline.cli.terminal.outcome import CommandFailed

LOG = ("log", 0)
LOST = replace(ALL_LOST, leader=None, offline=True)
SERVED = replace(ALL_LOST, leader=11, replicas=(11, 12), in_sync=(11, 12))


class Cluster:
    """It does what it is asked, but for what `refuses` says, once each. Brokers 11 and 12 are there, `silent` have a
    session and do not answer for the first looks; `copying_looks`: so long 12 copies, and has `copied` a look more."""

    def __init__(
        self,
        *,
        refuses: Iterable[Exception] = (),
        silent_looks: int = 0,
        stuck: bool = False,
        copying_looks: int = 0,
        copied: int = 0,
    ) -> None:
        self.row = LOST
        self.given_up: set[int] = set()
        self.left: set[int] = set()
        self.asked: list[str] = []
        self._refuses = iter(refuses)
        self._copying_looks = copying_looks
        self._pace, self._has = copied, 0
        self._silent_looks = silent_looks
        self._stuck = stuck

    async def read(self) -> ClusterSnapshot:
        self._silent_looks -= 1
        if self.row.target:
            self._has += self._pace
            self._copying_looks -= 1
            self.row = self.row if self._copying_looks > 0 else SERVED
        dead = {1, 2, 3} - self.left
        there = (11, 12, *sorted(dead)) if self._silent_looks >= 0 else (11, 12)
        gone = tuple(sorted(dead - self.given_up)) if self._silent_looks < 0 else ()
        rows = brokers(*there, gone=gone, given_up=tuple(sorted(self.given_up & dead)))
        return ClusterSnapshot("c", ClusterImage(), rows, [self.row])

    async def answering(self, look: ClusterSnapshot) -> dict[int, str]:
        return {one.node: f"h:{one.node}" for one in look.brokers if one.active and one.node > 10}

    async def default_factor(self, _: object) -> int:
        return 1

    def _refused(self) -> None:
        for refusal in self._refuses:
            raise refusal

    async def give_up(self, _: object, node: int, broker_epoch: int | None) -> None:
        self._refused()
        assert broker_epoch == 1, "of the look that asks for it"
        self.asked.append(f"give up {node}")
        if node in self.given_up:
            self.left.add(node)
        self.given_up.add(node)
        if self.given_up == {1, 2, 3}:
            self.row = replace(self.row, in_sync=() if self.row.leader is None else self.row.in_sync)

    async def move(self, _: object, moves: Mapping[tuple[str, int], tuple[int, ...]]) -> list[str]:
        self._refused()
        self.asked.append(f"move to {sorted(moves[LOG])}")
        if not self._stuck:
            self.row = replace(SERVED, in_sync=(11,), target=(11, 12)) if self._copying_looks else SERVED
        return []

    async def copied(self, look: ClusterSnapshot, places: Collection[tuple[str, int]]) -> int:
        return self._has if LOG in places else 0

    async def ends(self, _: object, led: Mapping[int, Collection[tuple[str, int]]]) -> dict[tuple[str, int], Ends]:
        return {place: Ends(0, 9) for places in led.values() for place in places}


def run(cluster: Cluster) -> tuple[ClusterSnapshot, dict[tuple[str, int], Ends]]:
    agreed = {(node, 1) for node in (1, 2, 3)}
    return run_fast(RestoreRun(cast(Any, cluster), cast(Any, cluster), {}, agreed).run(), timeout_s=HOUR_S)


def test_nodes_are_given_up_then_replicas_move_then_nodes_leave() -> None:
    """Nothing before those who are dead, and have a session yet, lost it."""
    cluster = Cluster(silent_looks=5)
    look, ends = run(cluster)
    assert cluster.asked == [
        *("give up 1", "give up 2", "give up 3"),
        "move to [11, 12]",
        *("give up 1", "give up 2", "give up 3"),
    ]
    assert ends == {LOG: Ends(0, 9)} and look.partitions == [SERVED]


def test_what_is_refused_is_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The controller died meanwhile, or the cluster has moved on: the next look says what is still to be done."""
    cluster = Cluster(refuses=[CommandFailed("broker 1 has a session"), BrokerUnreachable("no answer")])
    run(cluster)
    assert cluster.left == {1, 2, 3}
    assert "not yet: broker 1 has a session" in capsys.readouterr().err


def test_a_restore_that_comes_no_further_says_what_it_waits_for() -> None:
    with pytest.raises(CommandFailed, match=r"1 partitions do not serve yet: log-0; .*run this command again"):
        run(Cluster(stuck=True))


COPY_POLLS = round(2 * PATIENCE_S / executor._POLL_S)


def test_a_restore_does_not_give_up_while_a_large_partition_is_copied() -> None:
    """Nothing but the bytes that the new replica has changes for four minutes; where they stand still it ends."""
    look, ends = run(Cluster(copying_looks=COPY_POLLS, copied=1 << 20))
    assert ends == {LOG: Ends(0, 9)} and look.partitions == [SERVED]
    with pytest.raises(CommandFailed, match=r"nothing changed for 120 s: 1 partitions do not serve yet: log-0; "):
        run(Cluster(copying_looks=COPY_POLLS))


def test_bytes_are_counted_of_replicas_that_are_to_join_and_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of those in sync, which grow by what is produced, nor of brokers that are away."""
    asked: list[Mapping[int, object]] = []

    def sizes(_: object, wanted: Mapping[int, Sequence[object]]) -> dict[object, int]:
        asked.append(wanted)
        return {(place, node): 5 for node, places in wanted.items() for place in places}

    monkeypatch.setattr(executor, "copied_bytes", sizes)
    joining = replace(SERVED, in_sync=(11,), target=(11, 12, 3))
    late = replace(SERVED, partition=1, in_sync=(11,))
    look = ClusterSnapshot("c", ClusterImage(), brokers(11, 12, gone=(3,)), [joining, late])
    there = LiveBrokers(None)
    assert asyncio.run(there.copied(look, {LOG, ("log", 1)})) == 5 and asked == [{12: [LOG]}]
    assert asyncio.run(there.copied(look, set())) == 0 and len(asked) == 1


def test_a_restore_that_is_refused_for_ever_says_why() -> None:
    """Nothing waited, so it said `0 partitions do not serve yet:` and no more."""
    cluster = Cluster(refuses=repeat(CommandFailed("broker 3 was not given up: it has a session")))
    cluster.row, cluster.given_up = SERVED, {1, 2, 3}
    said = "broker 3 is to leave the cluster; refused: broker 3 was not given up: it has a session; .*command again"
    with pytest.raises(CommandFailed, match=said):
        run(cluster)


class Responding:
    """A broker's connection on which every request gets `answer`."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __enter__(self) -> Responding:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, *_: object) -> object:
        return self._answer


def ask(monkeypatch: pytest.MonkeyPatch, answer: object, what: Callable[[LiveBrokers], Awaitable[object]]) -> object:
    monkeypatch.setattr(executor, "connect", lambda *_: Responding(answer))
    return asyncio.run(_awaited(what(LiveBrokers("h:1"))))


async def _awaited(what: Awaitable[object]) -> object:
    return await what


def test_moves_that_nobody_decided_in_time_are_not_told_as_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """REQUEST_TIMED_OUT names no partition: all of them counted as placed, since none was refused."""
    late = AlterPartitionReassignmentsResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None, responses=[])
    with pytest.raises(CommandFailed, match="REQUEST_TIMED_OUT"):
        ask(monkeypatch, late, lambda there: there.move({}, {LOG: (11, 12)}))


def test_who_has_left_already_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another restore, or the answer before this one, which was late."""
    gone = UnregisterBrokerResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message="no broker 3")
    ask(monkeypatch, gone, lambda there: there.give_up({}, 3))
    refused = UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="broker 3 has a session")
    with pytest.raises(CommandFailed, match="broker 3 was not given up: broker 3 has a session"):
        ask(monkeypatch, refused, lambda there: there.give_up({}, 3))


def test_who_came_back_since_the_plan_is_given_up_no_more() -> None:
    """It led alone, perhaps, and acknowledged something: when it is silent again it is waited for."""
    cluster = Cluster(stuck=True, silent_looks=5)
    answering = cluster.answering

    async def also_two(look: ClusterSnapshot) -> dict[int, str]:
        return await answering(look) | ({2: "h:2"} if cluster._silent_looks >= 0 else {})

    cluster.answering = also_two  # type: ignore[method-assign]
    with pytest.raises(CommandFailed, match="nothing changed"):
        run(cluster)
    assert "give up 2" not in cluster.asked and "give up 1" in cluster.asked


def test_who_had_another_session_since_the_plan_is_given_up_no_more() -> None:
    """Between two looks, so that none of them saw it: what it acknowledged then is nowhere else."""
    cluster = Cluster(stuck=True)
    agreed = {(1, 1), (2, 1), (3, 0)}  # 3 had the session of broker epoch 1 since
    with pytest.raises(CommandFailed, match="nothing changed"):
        run_fast(RestoreRun(cast(Any, cluster), cast(Any, cluster), {}, agreed).run(), timeout_s=HOUR_S)
    assert "give up 3" not in cluster.asked and "give up 1" in cluster.asked


def test_a_partition_that_stays_offline_is_told_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Its manifest is damaged; or it is whole, and nobody answered, which was told with an empty reason."""
    rows = [replace(LOST, partition=n) for n in range(3)]
    there = brokers(11, 12, gone=(1, 2, 3))
    held = {("log", 0): StoredPartition(damage="manifest.json is no JSON"), ("log", 1): HELD, ("log", 2): HELD}
    look, found = ClusterSnapshot("c", ClusterImage(), there, rows), plan(there, rows, held)
    _print_report(look, found, {("log", 2): Ends(5, 100)}, as_json=False)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "log-0 is offline: manifest.json is no JSON",
        "log-1 is offline: it has no leader that answers",
    ]
    assert "1 of 3 partitions serve" in printed.err


def test_a_move_that_nobody_ends_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(LOST, leader=11, offline=False, replicas=(11,), in_sync=(11,), target=(11, 4))]
    there = brokers(11, gone=(4,))
    look = ClusterSnapshot("c", ClusterImage(), there, rows)
    _print_report(look, plan(there, rows, {}), {("log", 0): Ends(5, 100)}, as_json=False)
    told = capsys.readouterr().err
    assert "log-0 was being moved to brokers that do not run (4): start them, or `thermocline" in told
