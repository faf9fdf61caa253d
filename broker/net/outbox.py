"""Answers of one connection on their way out: the queue that keeps their order, and the path they leave by.

Owns what may stand in the way of the next request: the answer that a blocking request waits for (`awaited`), too many
answers that wait for an earlier one (`answers.full`), a peer that does not take them (`send.busy`). Always true:
whatever the first answer in the queue waits for will call `progress`; an answer that fails ends the queue, and is told
once. Must not know frames, nor when to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from broker.net.answers import AnswerQueue
from broker.net.dispatch import AnswerFuture, CloseConnection, CloseReason, Later, Part
from broker.net.send_path import SendPath


class Outbox:
    """`progress` is called on the loop when an answer came that others, or the next frame, waited for; `failed` when
    one will never come: those before it leave, it and those behind it do not. With a failure when that is a bug."""

    __slots__ = ("_failed", "_progress", "answers", "awaited", "send")

    def __init__(
        self,
        answers_max: int,
        send: SendPath,
        progress: Callable[[AnswerFuture], None],
        failed: Callable[[CloseReason, str, BaseException | None], None],
    ) -> None:
        self.answers = AnswerQueue(answers_max)
        self.send = send
        self.awaited: AnswerFuture | None = None  # of a request that blocks
        self._progress = progress
        self._failed = failed

    @property
    def empty(self) -> bool:
        """Every answer has left the process."""
        return not self.answers and not self.send.busy

    def wait_for(self, later: Later) -> list[Part]:
        """Queue an answer that is not ready; parts that may leave now (it can be done already)."""
        answers, future = self.answers, later.future
        answers.add(future)
        if later.blocks and not future.done():
            self.awaited = future
            if len(answers) > 1:
                future.add_done_callback(self._progress)
        return self.pop_ready() if len(answers) == 1 else []

    def drop(self) -> None:
        """Nothing in the queue leaves any more."""
        for waiting in self.answers.drain():
            future = cast("AnswerFuture", waiting)
            future.remove_done_callback(self._progress)  # a request that waits for minutes must not keep us
            future.add_done_callback(_retrieve)

    def pop_ready(self) -> list[Part]:
        """Parts that may leave; whatever the next answer waits for will call `progress`."""
        ready = self.answers.pop_ready()
        head = cast("AnswerFuture | None", self.answers.head())
        if head is None:
            pass
        elif not head.done():
            head.add_done_callback(self._progress)
        else:
            self._answer_failed(head)
        return ready

    def _answer_failed(self, future: AnswerFuture) -> None:
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        self.drop()
        if isinstance(failure, CloseConnection):
            self._failed(CloseReason.REFUSED, failure.reason, None)
        else:
            self._failed(CloseReason.FAILED, f"no answer: {failure!r}", failure)


def _retrieve(future: AnswerFuture) -> None:
    """Nobody waits for this answer any more; asyncio shall not complain about its failure."""
    if not future.cancelled():
        future.exception()
