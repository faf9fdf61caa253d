"""The outcome table of a root's compare-and-set, played as conversations with the machine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from coldstore.object_store import Got
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
    Refused,
    RootFound,
    Terms,
    Wait,
    Waited,
)
from coldstore.roots.root_format import (
    RING_LENGTH,
    NotClaimed,
    Root,
    RootCodec,
    RootMissing,
    RootVanished,
    Unsettled,
)
from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable, ThermoclineError

KEY = "cluster.json"


class Names(msgspec.Struct, frozen=True):
    """Content for tests: a set of names, as a sorted tuple."""

    names: tuple[str, ...] = ()


CODEC = RootCodec(Names)


def add(name: str) -> Callable[[Names], Names]:
    return lambda content: Names(tuple(sorted({*content.names, name})))


def root_at(version: int, epoch: int = 1, *names: str, ids: dict[int, str] | None = None) -> Root[Names]:
    """A root whose commits have ids made from their versions, except those in `ids`."""
    first = max(1, version - RING_LENGTH + 1)
    ring = tuple((v, (ids or {}).get(v, f"{v:032x}")) for v in range(first, version + 1))
    return Root(version, epoch, ring, Names(tuple(sorted(names))), f"e{version}")


def my_id(n: int) -> str:
    return f"{0xABC000 + n:032x}"


class Play:
    """A conversation with one commit: `give` an event, look at `effect`."""

    def __init__(self, known: Root[Names] | None, terms: Terms[Names], deadline_s: float = 100.0) -> None:
        self._ids = iter(range(1000))
        self.machine = Commit(
            KEY, CODEC, terms, new_id=lambda: my_id(next(self._ids)), jitter=lambda: 1.0, deadline_s=deadline_s
        )
        self.effect: Effect[Names] = self.machine.start(known)

    def give(self, event: Event[Names], now_s: float = 0.0) -> Play:
        self.effect = self.machine.step(event, now_s)
        return self

    def expect_put(self, if_match: str | None) -> Root[Names]:
        """The root that the PUT would store."""
        assert isinstance(self.effect, Put) and self.effect.if_match == if_match, self.effect
        return CODEC.decode(KEY, Got(self.effect.data, "", len(self.effect.data)))

    def expect_get(self) -> Play:
        assert isinstance(self.effect, Get), self.effect
        return self

    def expect_wait(self) -> Play:
        assert isinstance(self.effect, Wait) and self.effect.seconds > 0, self.effect
        return self.give(Waited())

    def expect_done(self) -> Root[Names]:
        assert isinstance(self.effect, Done), self.effect
        return self.effect.root

    def expect_refused(self, kind: type[ThermoclineError]) -> None:
        assert isinstance(self.effect, Refused) and type(self.effect.error) is kind, self.effect


def edit_x(**terms: object) -> Terms[Names]:
    return Terms(add("x"), 1, **terms)  # type: ignore[arg-type]


UNKNOWN = PutUnknown("lost")


def test_200_is_done() -> None:
    """One PUT on the known ETag, with version + 1, our epoch and our id at the end of the ring."""
    play = Play(root_at(7, 1, "a"), edit_x())
    put = play.expect_put("e7")
    assert (put.version, put.epoch, put.content.names, put.ring[-1]) == (8, 1, ("a", "x"), (8, my_id(0)))
    done = play.give(PutAccepted("e8")).expect_done()
    assert (done.version, done.etag, done.content.names) == (8, "e8", ("a", "x"))
    assert play.machine.unsettled_version is None


def test_a_lost_answer_is_found_in_the_ring() -> None:
    """Time-out after the store took it: the read-back shows my id at v+1, so it is committed, no second PUT."""
    play = Play(root_at(7), edit_x()).give(UNKNOWN).expect_get()
    assert play.give(RootFound(root_at(8, 1, "x", ids={8: my_id(0)}))).expect_done().version == 8


@pytest.mark.parametrize("on_top", [1, 5, RING_LENGTH - 1])
def test_design_c03_my_commit_counts_whatever_stands_on_top(on_top: int) -> None:
    """Our CAS landed, its answer was lost, others committed on top: reading "their id" as "I lost" would be wrong."""
    play = Play(root_at(7), edit_x()).give(UNKNOWN).expect_get()
    stands = root_at(8 + on_top, 1, "x", "theirs", ids={8: my_id(0)})
    assert play.give(RootFound(stands)).expect_done() is stands


def test_my_commit_counts_under_a_higher_epoch_too() -> None:
    """It landed before the other claimed: committed; the epoch of what comes back says we were superseded."""
    play = Play(root_at(7), edit_x()).give(UNKNOWN)
    assert play.give(RootFound(root_at(9, 2, "x", ids={8: my_id(0)}))).expect_done().epoch == 2


def test_design_c03_a_late_put_is_settled_with_the_same_bytes() -> None:
    """The root still stands at v: the same bytes and id go again on the same ETag, until something settles it."""
    play = Play(root_at(7), edit_x())
    first = play.effect
    for _ in range(3):
        play.give(UNKNOWN).expect_get()
        play.give(RootFound(root_at(7))).expect_wait()
        assert play.effect == first
        assert play.machine.unsettled_version == 8
    play.give(UNKNOWN).expect_get()  # 412: the first one landed meanwhile
    assert play.give(RootFound(root_at(8, 1, "x", ids={8: my_id(0)}))).expect_done().version == 8


def test_a_lost_race_rebases_with_a_new_id() -> None:
    """Another id at v+1: the edit is made again on what they wrote, under a fresh commit id."""
    play = Play(root_at(7, 1, "a"), edit_x()).give(UNKNOWN)
    put = play.give(RootFound(root_at(8, 1, "a", "b"))).expect_put("e8")
    assert (put.version, put.content.names, put.ring[-1][1]) == (9, ("a", "b", "x"), my_id(1))
    play.give(PutAccepted("e9")).expect_done()


def test_losing_again_and_again_spreads_the_writers() -> None:
    """The second loss waits before it reads and tries again."""
    play = Play(root_at(7), edit_x()).give(UNKNOWN)
    play.give(RootFound(root_at(8))).give(UNKNOWN)
    play.give(RootFound(root_at(9))).expect_wait().expect_get()
    assert play.give(RootFound(root_at(10))).expect_put("e10").version == 11


def test_a_higher_epoch_fences() -> None:
    """Lost to a claim of a higher epoch: Fenced, and nothing of ours can land any more."""
    play = Play(root_at(7), edit_x()).give(UNKNOWN)
    play.give(RootFound(root_at(8, 2))).expect_refused(Fenced)
    assert play.machine.unsettled_version is None
    Play(root_at(7, 2), edit_x()).expect_refused(Fenced)


def test_design_c29_unknown_for_ever_goes_on_from_the_root_as_it_stands() -> None:
    """33 commits follow ours, its id left the ring: neither won nor lost. The edit is made again, here a no-op."""
    stands = root_at(8 + 33, 1, "x", "others")
    assert stands.commit_at(8) is None
    play = Play(root_at(7), edit_x()).give(UNKNOWN)
    assert play.give(RootFound(stands)).expect_done() is stands


def test_design_c29_unknown_for_ever_makes_the_edit_again_where_it_is_missing() -> None:
    play = Play(root_at(7), edit_x()).give(UNKNOWN)
    assert play.give(RootFound(root_at(8 + 33, 1, "others"))).expect_put("e41").content.names == ("others", "x")


def test_design_c29_unknown_for_ever_under_a_higher_epoch_fences() -> None:
    play = Play(root_at(7), edit_x()).give(UNKNOWN)
    play.give(RootFound(root_at(8 + 33, 2, "others"))).expect_refused(Fenced)


def test_the_ring_reaches_32_commits_and_no_further() -> None:
    """31 commits on top leave our id readable, 32 push it out."""
    for on_top, known in ((31, True), (32, False)):
        stands = root_at(8 + on_top, 1, ids={8: my_id(0)})
        assert (stands.commit_at(8) == my_id(0)) is known


def test_a_409_storm_ends_with_the_deadline_as_unsettled() -> None:
    """Conflicts decide nothing; when time is over the bytes may still land, and the error says so."""
    play = Play(root_at(7), edit_x(), deadline_s=10)
    for second in range(9):
        play.give(PutUnknown("409"), second).expect_get()
        play.give(RootFound(root_at(7)), second).expect_wait()
    play.give(PutUnknown("409"), 10).expect_refused(Unsettled)
    assert play.machine.unsettled_version == 8


def test_out_of_time_with_nothing_under_way_is_plain_retryable() -> None:
    play = Play(None, edit_x(), deadline_s=10).expect_get()
    play.give(GetFailed("503"), 1).expect_wait().expect_get()
    play.give(GetFailed("503"), 11).expect_refused(Retryable)
    lost = Play(root_at(7), edit_x(), deadline_s=10).give(UNKNOWN, 1)
    lost.give(RootFound(root_at(8)), 11).expect_refused(Retryable)
    assert lost.machine.unsettled_version is None


def test_failing_reads_back_off() -> None:
    """The waits grow and are bounded."""
    play = Play(None, edit_x(), deadline_s=1000).expect_get()
    waits = []
    for _ in range(12):
        play.give(GetFailed("503"))
        assert isinstance(play.effect, Wait)
        waits.append(play.effect.seconds)
        play.give(Waited()).expect_get()
    assert waits[0] < waits[1] < waits[2] and waits[-1] == waits[-2] == 2.0


def test_creation_is_put_if_absent() -> None:
    """No root: the initial content is edited and put with If-None-Match; a lost answer is settled the same way."""
    play = Play(None, edit_x(initial=Names(("seed",)))).expect_get()
    put = play.give(RootFound(None)).expect_put(None)
    assert (put.version, put.ring, put.content.names) == (1, ((1, my_id(0)),), ("seed", "x"))
    play.give(UNKNOWN).expect_get()
    play.give(RootFound(None)).expect_wait()
    play.expect_put(None)
    play.give(UNKNOWN).expect_get()
    assert play.give(RootFound(root_at(2, 1, "x", ids={1: my_id(0)}))).expect_done().version == 2


def test_a_lost_creation_rebases_on_the_winner() -> None:
    play = Play(None, edit_x(initial=Names())).give(RootFound(None)).give(UNKNOWN)
    assert play.give(RootFound(root_at(1, 1, "other"))).expect_put("e1").content.names == ("other", "x")


def test_without_initial_nothing_is_created() -> None:
    Play(None, edit_x()).give(RootFound(None)).expect_refused(RootMissing)


def test_a_root_that_vanished_is_never_recreated() -> None:
    """404 to If-Match and nothing there: the topic was deleted; stop."""
    play = Play(root_at(7), edit_x(initial=Names())).give(PutUnknown("404"))
    play.give(RootFound(None)).expect_refused(RootVanished)


@pytest.mark.parametrize("found", [root_at(6), root_at(7, ids={7: "f" * 32}), root_at(9, ids={7: "f" * 32})])
def test_another_history_is_refused(found: Root[Names]) -> None:
    """The root went backwards or has other commits behind it (a restored bucket): nothing is written over it."""
    Play(root_at(7), edit_x()).give(UNKNOWN).give(RootFound(found)).expect_refused(Corrupt)


def test_design_c01_a_claim_raises_the_epoch_and_a_plain_commit_needs_it() -> None:
    """A writer of epoch 2 must claim first; its claim sets the epoch; epoch 1 is then fenced."""
    stale = Play(root_at(7, 1), Terms(add("x"), 2)).expect_get()
    stale.give(RootFound(root_at(7, 1))).expect_refused(NotClaimed)
    claim = Play(root_at(7, 1), Terms(lambda c: c, 2, claim=True))
    assert claim.expect_put("e7").epoch == 2
    Play(root_at(8, 2), edit_x()).expect_refused(Fenced)


def test_claiming_again_is_a_no_op_unless_exclusive() -> None:
    """Our own claim that landed unseen may be repeated; in an election an equal epoch belongs to another."""
    again = Play(root_at(7, 2), Terms(lambda c: c, 2, claim=True)).expect_get()
    again.give(RootFound(root_at(7, 2))).expect_done()
    Play(root_at(7, 2), Terms(lambda c: c, 2, claim=True, exclusive=True)).expect_refused(Fenced)
    lost = Play(root_at(7, 1), Terms(add("x"), 2, claim=True, exclusive=True)).give(UNKNOWN)
    lost.give(RootFound(root_at(8, 2))).expect_refused(Fenced)


def test_a_no_op_is_believed_only_on_a_fresh_root() -> None:
    """What the cached root already holds may be gone or fenced: it is read once before anything is answered."""
    play = Play(root_at(7, 1, "x"), edit_x()).expect_get()
    assert play.give(RootFound(root_at(9, 1))).expect_put("e9").content.names == ("x",)
    fenced = Play(root_at(7, 1, "x"), edit_x()).expect_get()
    fenced.give(RootFound(root_at(9, 2, "x"))).expect_refused(Fenced)


def test_an_edit_that_refuses_is_asked_again_on_a_fresh_root() -> None:
    def refuse_without_a(content: Names) -> Names:
        if "a" not in content.names:
            raise InvalidRequest("no a")
        return Names((*content.names, "x"))

    play = Play(root_at(7), Terms(refuse_without_a, 1)).expect_get()
    assert play.give(RootFound(root_at(8, 1, "a"))).expect_put("e8").content.names == ("a", "x")
    Play(root_at(7), Terms(refuse_without_a, 1)).give(RootFound(root_at(7))).expect_refused(InvalidRequest)
