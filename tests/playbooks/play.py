"""A playbook: events of the core, written one after the other, each followed by the oracle's look.

Owns nothing but that order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.playbooks.core import Core, Fetch
from tests.playbooks.oracle import Oracle


class Play:
    """`play.append(1)` and the rest are the core's; `records`: how many were acknowledged."""

    def __init__(
        self,
        replicas: tuple[int, ...] = (1, 2, 3),
        *,
        minimum: int = 1,
        is_sync: bool = True,
        spare: tuple[int, ...] = (),
    ) -> None:
        self.core = Core(replicas, minimum=minimum, is_sync=is_sync, spare=spare)
        self.oracle = Oracle()
        self.oracle.look(self.core)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.core, name)
        if not callable(found):
            return found

        def event(*args: Any, **how: Any) -> Any:
            answer = found(*args, **how)
            self.oracle.look(self.core)
            return answer

        return event

    @property
    def acknowledged(self) -> int:
        return len(self.oracle.acknowledged)

    def write(self, node: int, count: int = 1) -> None:
        """Records that are flushed at their leader, and nowhere else."""
        for _ in range(count):
            self.append(node)
        self.flush(node)

    def rounds(self, *nodes: int, times: int = 3) -> None:
        """Each copies until it has heard that all it has is committed."""
        for _ in range(times):
            for node in nodes:
                self.fetch(node)
                self.serve(len(self.core.fetches) - 1)
                if self.core.answers:
                    self.take(len(self.core.answers) - 1)
                self.flush(node)

    def obeyed(self, *nodes: int) -> None:
        for node in nodes or tuple(self.core.processes):
            self.obey(node)

    def set_by_leader(self, node: int, *, end_before: int = -1) -> None:
        """What the leader wants is proposed, decided and obeyed."""
        assert self.propose(node, end_before=end_before) and self.decide(len(self.core.proposals) - 1)
        self.obeyed()

    def late_fetch(self, node: int) -> Fetch:
        """A question that stays in the socket for now; `serve` it where it is to arrive."""
        self.fetch(node)
        return self.core.fetches[-1]

    def end_of(self, node: int) -> int:
        return self.core.disks[node].end


def broken(why: Callable[[], object]) -> str:
    """What the oracle says to `why`; for tests of the oracle itself."""
    try:
        why()
    except AssertionError as said:
        return str(said)
    raise AssertionError("nothing was broken")
