"""What became of the records of `thermocline produce`, and the sentence that says so.

Owns the counts, the first refusal, and what the broker says about itself when it gave no answer in time. Always true:
every line that was read is counted once: acknowledged, refused, or without an answer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from thermocline.cli.outcome import INTERRUPTED, CommandFailed, Exit
from thermocline.cli.output import Progress, note
from thermocline.units import show_size

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_PROGRESS_RECORDS = 10_000


class Outcome:
    """Acknowledgements and refusals, as they come in; lines are counted from 1."""

    def __init__(self) -> None:
        self.lines = 0  # handed to the client so far
        self.acknowledged = 0
        self.refused = 0
        self.left = 0  # without an answer at the end
        self.read_to_end = True
        self.interrupted = False
        self._first: tuple[int, KafkaError, int] | None = None  # line, why, bytes of its value
        self._progress = Progress()

    def delivered(self, line: int, error: KafkaError | None, message: Message) -> None:
        """librdkafka's word on one record."""
        if error is not None:
            self.refuse(line, error, len(message.value() or b""))
            return
        self.acknowledged += 1
        if self.acknowledged % _PROGRESS_RECORDS == 0:
            self._progress.show(f"{self.acknowledged} records acknowledged")

    def refuse(self, line: int, error: KafkaError, value_bytes: int) -> None:
        """One record will not be written. The one that stands first in stdin is told."""
        self.refused += 1
        if self._first is None or line < self._first[0]:
            self._first = (line, error, value_bytes)

    def report(self, bootstrap: str, topic: str) -> int:
        """The exit code. CommandFailed names the first line that was refused, why, and how many others were."""
        self._progress.done()
        if self._first is not None:
            raise CommandFailed(self._refusal(bootstrap, topic, *self._first))
        if self.left:
            why = said_by_broker(bootstrap, topic)
            raise CommandFailed(f"producing to {topic}: {self._counts()}: no answer in time{why}")
        if self.interrupted or sys.stderr.isatty():
            note(f"{'interrupted: ' * self.interrupted}{self.acknowledged} records acknowledged")
        return INTERRUPTED if self.interrupted else Exit.DONE

    def _refusal(self, bootstrap: str, topic: str, line: int, error: KafkaError, value_bytes: int) -> str:
        from confluent_kafka import KafkaError

        from thermocline.cli.clients import refused_topic

        timed_out = error.code() == KafkaError._MSG_TIMED_OUT
        why = said_by_broker(bootstrap, topic) if timed_out else ""
        told = f"{error.str()}{why}" if why else refused_topic(topic, error)
        return f"producing to {topic}: line {line} ({show_size(value_bytes)}) was refused: {told}; {self._counts()}"

    def _counts(self) -> str:
        counts = [f"{self.acknowledged} of {self.lines} records acknowledged"]
        if self.refused:
            counts.append(f"{self.refused} refused")
        if self.left:
            counts.append(f"{self.left} without an answer")
        if not self.read_to_end:
            counts.append(f"nothing after line {self.lines} was read")
        return ", ".join(counts)


def said_by_broker(bootstrap: str, topic: str) -> str:
    """`: why` as a Thermocline broker says it of itself and of the topic; "" when it says nothing, or is no such."""
    from thermocline.cli.tier_source import TierSource
    from thermocline.cli.wire_client import BrokerUnreachable

    source = TierSource(bootstrap, topic, None)
    try:
        blocked = sorted({row.blocked_by for row in source.read() if row.blocked_by})
    except (CommandFailed, BrokerUnreachable) as failed:
        return f": {failed}"
    told = source.conditions()
    if blocked and not told:
        told = [f"{topic} is blocked by {', '.join(blocked)}; see `thermocline tier status`"]
    return "".join(f"; {line}" for line in told)
