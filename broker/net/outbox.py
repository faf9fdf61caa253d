"""Answers of one connection on their way out: the queue that keeps their order, and the path they leave by.

Owns what may stand in the way of the next request: the answer that a blocking request waits for (`awaited`), too many
answers that wait for an earlier one (`answers.full`), a peer that does not take them (`send.busy`). Always true:
whatever the first answer in the queue waits for will call `progress`; an answer that fails ends the queue, and is told
once. Must not know frames, nor when to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from broker.net.answers import AnswerQueue
from broker.net.dispatch import CloseConnection, CloseReason, Later, Part
from broker.net.send_path import SendPath


class Outbox:
    """`progress` is called on the loop when an answer came that others, or the next frame, waited for; `failed` when
    one will never come: those before it leave, it and those behind it do not. With a failure when that is a bug."""

    __slots__ = ("_failed", "_progress", "answers", "awaited", "send")

    def __init__(
        self,
        answers_max: int,
        send: SendPath,
        progress: Callable[[Later], None],
        failed: Callable[[CloseReason, str, BaseException | None], None],
    ) -> None:
        self.answers = AnswerQueue(answers_max)
        self.send = send
        self.awaited: Later | None = None  # of a request that blocks
        self._progress = progress
        self._failed = failed

    @property
    def empty(self) -> bool:
        """Every answer has left the process."""
        return not self.answers and not self.send.busy

    def wait_for(self, later: Later) -> list[Part]:
        """Queue an answer that is not ready; parts that may leave now (it can be done already)."""
        answers = self.answers
        answers.add(later)
        if later.blocks and not later.is_done:
            self.awaited = later
            if len(answers) > 1:
                later.when_done(self._progress)
        return self.pop_ready() if len(answers) == 1 else []

    def drop(self) -> None:
        """Nothing in the queue leaves any more."""
        for waiting in self.answers.drain():
            cast("Later", waiting).forget(self._progress)  # a request that waits for minutes must not keep us

    def close(self) -> None:
        """The connection is gone. What a blocking request is answered with later is let go of by whoever says it: it
        may name files of a segment that is deleted, and we wait for the collector of cycles."""
        self.send.close()
        self.drop()
        self.awaited = None

    def pop_ready(self) -> list[Part]:
        """Parts that may leave; whatever the next answer waits for will call `progress`."""
        ready = self.answers.pop_ready()
        head = cast("Later | None", self.answers.head())
        if head is None:
            pass
        elif not head.is_done:
            head.when_done(self._progress)
        else:
            self._answer_failed(head)
        return ready

    def _answer_failed(self, later: Later) -> None:
        failure = later.failure
        self.drop()
        if isinstance(failure, CloseConnection):
            self._failed(CloseReason.REFUSED, failure.reason, None)
        else:
            self._failed(CloseReason.FAILED, f"no answer: {failure!r}", failure)
