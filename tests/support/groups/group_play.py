"""Playbooks for one classic group: give events, see effects, let timers run, decide when records are stored.

Owns the group's timers in virtual ms and its stores. Always true: a token answered twice fails the test at once.
"""

from __future__ import annotations

from typing import Any

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import (
    AdmitCommit,
    Event,
    GroupMetadata,
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    Protocol,
    Reply,
    Result,
    StartTimer,
    StopTimer,
    Store,
    Stored,
    Sync,
    SyncReply,
    TimedOut,
    Timer,
    TimerKind,
)

RANGE = (Protocol("range", b"topics"),)


class Play:
    """A group under test. Tokens are texts the test chooses; `auto_store` stores every record at once."""

    def __init__(self, config: GroupConfig | None = None, *, auto_store: bool = True) -> None:
        self.config = config or GroupConfig()
        self.group = ClassicGroup(self.config, 0)
        self.now_ms = 0
        self.timers: dict[Timer, int] = {}
        self.stores: list[Store] = []
        self.stored: list[GroupMetadata] = []
        self.answers: dict[object, Result] = {}
        self.auto_store = auto_store
        self._serial = 0

    # ---- what happens ----------------------------------------------------------------------------------------------

    def give(self, event: Event) -> None:
        self.perform(self.group.step(event, self.now_ms))

    def perform(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Reply(token, result):
                    assert token not in self.answers, f"{token} is answered twice"
                    self.answers[token] = result
                case StartTimer(timer, delay_ms):
                    self.timers[timer] = self.now_ms + delay_ms
                case StopTimer(timer):
                    self.timers.pop(timer, None)
                case Store():
                    self.stores.append(effect)
        while self.auto_store and self.stores:
            self.store()

    def store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The oldest record on its way arrives, or does not."""
        store = self.stores.pop(0)
        if error is ErrorCode.NONE:
            self.stored.append(store.metadata)
        self.give(Stored(store.ticket, error))

    def wait(self, delay_ms: int) -> None:
        """Let time pass; timers fire in order."""
        end_ms = self.now_ms + delay_ms
        while self.timers:
            timer = min(self.timers, key=self.timers.__getitem__)
            if self.timers[timer] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(timer))
            self.give(TimedOut(timer))
        self.now_ms = end_ms

    # ---- requests; each returns its token ---------------------------------------------------------------------------

    def token(self, what: str) -> str:
        self._serial += 1
        return f"{what}-{self._serial}"

    def join(self, member_id: str = "", *, new_id: str = "", **more: Any) -> str:
        token = self.token("join")
        fields: dict[str, Any] = {
            "client_id": "client",
            "client_host": "/host",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            **more,
        }
        self.give(Join(token=token, new_member_id=new_id or f"id-{token}", member_id=member_id, **fields))
        return token

    def sync(
        self, member_id: str, generation: int | None = None, given: dict[str, bytes] | None = None, **more: Any
    ) -> str:
        token = self.token("sync")
        assignments = tuple((given or {}).items())
        generation = self.group.generation if generation is None else generation
        self.give(Sync(token, member_id, generation, assignments=assignments, **more))
        return token

    def beat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        token = self.token("beat")
        self.give(Heartbeat(token, member_id, self.group.generation if generation is None else generation, instance_id))
        return self.answers[token].error

    def leave(self, *members: str | Leaver) -> list[ErrorCode]:
        token = self.token("leave")
        self.give(Leave(token, tuple(m if isinstance(m, Leaver) else Leaver(m) for m in members)))
        return [row.error for row in self.answers[token].members]  # type: ignore[union-attr]

    def admit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> ErrorCode:
        token = self.token("commit")
        self.give(AdmitCommit(token, member_id, generation, instance_id))
        return self.answers[token].error

    # ---- what came of it ---------------------------------------------------------------------------------------------

    def joined(self, token: str) -> JoinReply:
        answer = self.answers[token]
        assert isinstance(answer, JoinReply)
        return answer

    def synced(self, token: str) -> SyncReply:
        answer = self.answers[token]
        assert isinstance(answer, SyncReply)
        return answer

    def is_parked(self, token: str) -> bool:
        return token not in self.answers

    def session_ends_ms(self, member_id: str) -> int | None:
        return self.timers.get(Timer(TimerKind.SESSION, member_id))

    def become_stable(self, *names: str, **more: Any) -> list[str]:
        """`names` join and get their names as assignments; returns their member ids (the same names)."""
        tokens = [self.join(new_id=name, **more) for name in names]
        self.wait(self.config.initial_rebalance_delay_ms * 4)
        assert all(self.joined(token).error is ErrorCode.NONE for token in tokens)
        for name in names[1:]:
            self.sync(name)
        self.sync(names[0], given={name: name.encode() for name in names})
        return list(names)
