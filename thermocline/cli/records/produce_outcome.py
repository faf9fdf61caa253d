"""The outcome of `thermocline produce`: counts, and the first refusal.

Every line is counted once: acknowledged, refused, or without an answer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from thermocline.cli.terminal.outcome import INTERRUPTED, CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note
from thermocline.cli.tier.diagnosis import broker_reason, unmet_replicas
from thermocline.units import show_size

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_PROGRESS_RECORDS = 10_000


class ProduceOutcome:
    """Acknowledgements and refusals; lines count from 1."""

    def __init__(self) -> None:
        self.lines = 0  # handed to the client so far
        self.acknowledged = 0
        self.refused = 0
        self.left = 0  # lines without an answer at the end
        self.read_to_end = True
        self.interrupted = False
        self._first: tuple[int, KafkaError, int] | None = None  # line, why, bytes of its value
        self._progress = ProgressLine()

    def delivered(self, line: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refuse(line, error, len(message.value() or b""))
            return
        self.acknowledged += 1
        if self.acknowledged % _PROGRESS_RECORDS == 0:
            self._progress.show(f"{self.acknowledged} records acknowledged")

    def refuse(self, line: int, error: KafkaError, value_bytes: int) -> None:
        """A record was refused. The first refused record in stdin is reported."""
        self.refused += 1
        if self._first is None or line < self._first[0]:
            self._first = (line, error, value_bytes)

    def report(self, bootstrap: str, topic: str) -> int:
        """The exit code. Raises CommandFailed with the first refused line, the reason, and the number of other refused
        lines."""
        self._progress.done()
        if self._first is not None:
            raise CommandFailed(self._refusal(bootstrap, topic, *self._first))
        if self.left:
            why = _why_late(bootstrap, topic)
            raise CommandFailed(f"producing to {topic}: {self._counts()}: no answer in time{why}")
        if self.interrupted or sys.stderr.isatty():
            note(f"{'interrupted: ' * self.interrupted}{self.acknowledged} records acknowledged")
        return INTERRUPTED if self.interrupted else Exit.DONE

    def _refusal(self, bootstrap: str, topic: str, line: int, error: KafkaError, value_bytes: int) -> str:
        from confluent_kafka import KafkaError

        from thermocline.cli.clients.stock import refused_topic

        timed_out = error.code() == KafkaError._MSG_TIMED_OUT
        why = _why_late(bootstrap, topic) if timed_out else ""
        reason = f"{error.str()}{why}" if why else refused_topic(topic, error)
        return f"producing to {topic}: line {line} ({show_size(value_bytes)}) was refused: {reason}; {self._counts()}"

    def _counts(self) -> str:
        counts = [f"{self.acknowledged} of {self.lines} records acknowledged"]
        if self.refused:
            counts.append(f"{self.refused} refused")
        if self.left:
            counts.append(f"{self.left} without an answer")
        if not self.read_to_end:
            counts.append(f"nothing after line {self.lines} was read")
        return ", ".join(counts)


def _why_late(bootstrap: str, topic: str) -> str:
    """`; reason` if the broker or the topic's configs explain a timeout; otherwise ""."""
    if reason := broker_reason(bootstrap, topic):
        return reason
    unmet = unmet_replicas(bootstrap, topic)
    return f"; {unmet}" if unmet else ""
