"""The queue that keeps answers of one connection in request order.

Always true: an answer leaves only after every earlier one left; a failed one ends the queue, as nothing after it may
be sent. Sans-IO: a waiting answer is anything that says when it is done, and with what (`dispatch.Later`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from broker.net.dispatch import Part
from seams.disk import FileRange

_READY_BYTES_MAX: Final = 64 << 10
"""Of answers that are ready but wait for an earlier one: who pipelines large ones behind a slow one stops here."""


class AwaitedAnswer(Protocol):
    """An answer on its way."""

    @property
    def is_done(self) -> bool: ...
    @property
    def failure(self) -> BaseException | None: ...
    @property
    def parts(self) -> list[Part] | None: ...


class AnswerQueue:
    """Answers that cannot leave yet, oldest first. Empty whenever every request so far was answered at once.

    `entries`: for whoever asks once a frame whether there are any: falsy if not (`len` costs 0.1 µs). To be read only.
    """

    __slots__ = ("_count_max", "_ready_bytes", "entries")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.entries: deque[list[Part] | AwaitedAnswer] | None = None  # a deque costs 0.7 KiB: made on first use
        self._ready_bytes = 0

    def __len__(self) -> int:
        return 0 if self.entries is None else len(self.entries)

    @property
    def full(self) -> bool:
        """No request may be taken on before something left."""
        return len(self) >= self._count_max or self._ready_bytes >= _READY_BYTES_MAX

    def add(self, answer: list[Part] | AwaitedAnswer) -> None:
        """Queue an answer behind all others."""
        if self.entries is None:
            self.entries = deque()
        self.entries.append(answer)
        if isinstance(answer, list):
            self._ready_bytes += _memory(answer)

    def head(self) -> AwaitedAnswer | None:
        """After `pop_ready`: the answer all others wait for, None when there is none. If it is done, it failed."""
        head = self.entries[0] if self.entries else None
        assert not isinstance(head, list), "a ready answer was left behind"
        return head

    def pop_ready(self) -> list[Part]:
        """Parts of all answers that may leave now, in order; stops before one that failed."""
        ready: list[Part] = []
        entries = self.entries
        while entries:
            head = entries[0]
            if isinstance(head, list):
                ready += head
                self._ready_bytes -= _memory(head)
            elif not head.is_done or head.failure is not None:
                break
            else:
                ready += head.parts or ()
            entries.popleft()
        return ready

    def drain(self) -> list[AwaitedAnswer]:
        """Forget everything; the answers still waiting, for whoever must look after them."""
        waiting = [] if self.entries is None else [entry for entry in self.entries if not isinstance(entry, list)]
        self.entries = None
        self._ready_bytes = 0
        return waiting


def _memory(parts: list[Part]) -> int:
    """Bytes a waiting answer keeps in memory: file ranges keep none."""
    return sum(len(part) for part in parts if not isinstance(part, FileRange))
