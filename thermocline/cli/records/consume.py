"""`thermocline consume`: prints records of a topic through the stock consumer. Flags have kcat's letters.

`-n` and `-e` are exact. With a group, offsets are committed for printed records only.
"""

from __future__ import annotations

import argparse
import secrets
import select
import sys
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from logformat.values import is_topic_name
from thermocline.cli.records.consume_start import StartEdge, parse_start, starts
from thermocline.cli.records.record_lines import json_record, renderer
from thermocline.cli.terminal.arguments import add_bootstrap, checked, filled, natural, positive
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import note
from thermocline.cli.terminal.times import TIME_HELP
from thermocline.cli.tier.diagnosis import broker_reason

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

    from thermocline.cli.terminal.arguments import Parser, Subparsers

_BATCH = 1000  # records a call
_POLL_S = 0.2
SILENCE_NOTED_S = 10.0
_NAMED_MAX = 3
# Configs that -e, -g and -o depend on.
_DECIDED = {
    "group.id": "use -g",
    "auto.offset.reset": "use -o",
    "enable.partition.eof": "-e needs it",
    "enable.auto.commit": "with -g only printed records are committed",
}


def register(nouns: Subparsers[Parser]) -> None:
    consume = nouns.add_parser(
        "consume",
        help="read a topic to stdout",
        description=(
            "Print records from the beginning, or from the place of -o, until the command is stopped or -n or -e "
            "ends it."
        ),
        example="thermocline consume -t numbers -e\n"
        "thermocline consume -t orders -p 0 -o 1000 -n 5 -f '%o %k: %s\\n'\n"
        "thermocline consume -t orders -o @2026-11-01T08:30 -e --json",
    )
    add = consume.add_argument
    add("-t", "--topic", required=True, type=filled, metavar="T")
    add("-p", "--partition", type=natural, metavar="P", help="default: all")
    add("-o", "--offset", type=checked(parse_start), default="beginning", metavar="beginning|end|N|-N|@TIME",
        help=f"where to start; -N: N before the end; @TIME: the first record at or after it, {TIME_HELP}")  # fmt: skip
    add("-n", "--count", type=positive, metavar="COUNT", help="end after this many records")
    add("-e", "--exit-at-end", action="store_true", help="end when the end of every partition is reached")
    output = consume.add_mutually_exclusive_group()
    output.add_argument("-f", "--format", default="%s\\n", metavar="FORMAT",
        help="%%s value %%k key %%o offset %%p partition %%t topic %%T timestamp in ms %%S size %%K key size "
        "%%h headers; default '%%s\\n'")  # fmt: skip
    output.add_argument("--json", action="store_true",
        help="JSON lines: topic partition offset timestamp timestamp_type key value headers; bytes that are not UTF-8 "
        "are {\"base64\": \"…\"}")  # fmt: skip
    add(
        "-g",
        "--group",
        type=filled,
        metavar="GROUP",
        help="as a member of a consumer group; commits the printed offsets",
    )
    add_bootstrap(consume)
    consume.set_defaults(run=run)


class _Given:
    """Whether the group assigned partitions to this member. A member has no partition if there are more members than
    partitions."""

    once = False

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions:
            note("thermocline: the group's other members read every partition")
        self.once = True


def run(arguments: argparse.Namespace) -> int:
    from confluent_kafka import Consumer

    from thermocline.cli.clients.stock import make_client, require_broker

    if arguments.group is not None and (arguments.partition is not None or not isinstance(arguments.offset, StartEdge)):
        raise CommandFailed(
            "with -g the group decides on partitions and offsets: leave out -p, and write -o beginning|end", Exit.USAGE
        )
    if not is_topic_name(arguments.topic):  # librdkafka takes "^…" as a pattern, and waits for invalid names
        raise CommandFailed(f"topic {arguments.topic}: a name is 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor ..")
    defaults = _consumer_config(arguments)
    consumer = make_client(Consumer, arguments.bootstrap_server, defaults, arguments.extra, _DECIDED)
    require_broker(consumer, arguments.bootstrap_server)
    try:
        if arguments.group is not None:
            given = _Given()
            consumer.subscribe([arguments.topic], on_assign=given.assigned)
            partitions: set[int] | _Given = given
        else:
            assigned = starts(consumer, arguments.topic, arguments.partition, arguments.offset)
            consumer.assign(assigned)
            partitions = {one.partition for one in assigned}
        _print_records(consumer, arguments, partitions)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    return Exit.DONE


def _consumer_config(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        # The same prefix as kafka-console-consumer, so that one ACL for the prefix covers both. Nothing is committed.
        "group.id": arguments.group or f"console-consumer-{secrets.randbelow(100_000)}",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "latest" if arguments.offset is StartEdge.END else "earliest",
        # librdkafka's default pauses for 1 s when its queue is full, which stalls a fast reader.
        "fetch.queue.backoff.ms": 5,
    }


def _print_records(consumer: Consumer, arguments: argparse.Namespace, partitions: set[int] | _Given) -> None:
    from confluent_kafka import KafkaError, TopicPartition

    from thermocline.cli.clients.stock import plainly

    silence = _Silence(arguments.bootstrap_server, arguments.topic)
    undecided = _Undecided(arguments.topic)
    render = json_record if arguments.json else renderer(arguments.format)
    out = sys.stdout.buffer
    left = arguments.count
    ended: set[int] = set()
    while left is None or left > 0:
        printed: dict[int, int] = {}
        for message in consumer.consume(_BATCH, _POLL_S):
            error, index, offset = message.error(), message.partition(), message.offset()
            if error is None:
                if left == 0:
                    break
                assert index is not None and offset is not None  # None only for events without a record
                out.write(render(message))
                ended.discard(index)
                printed[index] = offset + 1
                left = None if left is None else left - 1
            elif error.code() == KafkaError._PARTITION_EOF and index is not None:
                ended.add(index)
                assert offset is not None
                _, high_watermark = consumer.get_watermark_offsets(TopicPartition(arguments.topic, index), cached=True)
                undecided.reached(index, offset, high_watermark)
            elif not error.retriable():
                raise CommandFailed(plainly(f"reading {arguments.topic}", error))
        out.flush()
        if arguments.group is not None and printed:
            _commit(consumer, arguments, printed)
        if not printed and _reader_left(out):
            raise BrokenPipeError  # otherwise only the next write would notice the end
        unread = _unread(consumer, ended, partitions)
        if arguments.exit_at_end and unread is not None and not unread:
            undecided.tell()
            return
        if printed or not unread:
            silence.end()
            undecided.go_on(printed)
        else:
            silence.go_on(unread)


def _commit(consumer: Consumer, arguments: argparse.Namespace, printed: dict[int, int]) -> None:
    """Commit the positions of printed records. A partition that moved to another member meanwhile is only noted."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    from thermocline.cli.clients.stock import plainly

    moved = (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
             KafkaError._ASSIGNMENT_LOST)  # fmt: skip
    done = [TopicPartition(arguments.topic, index, offset) for index, offset in printed.items()]
    try:
        consumer.commit(offsets=done, asynchronous=False)
    except KafkaException as failed:
        error = failed.args[0]
        where = ", ".join(f"{one.topic}-{one.partition} up to offset {one.offset - 1}" for one in done[:3])
        more = f" and {len(done) - 3} more" if len(done) > 3 else ""
        what = f"group {arguments.group} did not commit the printed records of {where}{more}: they will be read again"
        if error.code() not in moved:
            raise CommandFailed(plainly(what, error)) from failed
        note(f"thermocline: {plainly(what, error)}")


def _reader_left(out: BinaryIO) -> bool:
    """Whether the pipe's reader is gone (`… | head -1`)."""
    poll = select.poll()
    poll.register(out, 0)  # errors only
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _unread(consumer: Consumer, ended: set[int], partitions: set[int] | _Given) -> set[int] | None:
    """Partitions not read to their end. In a group only the partitions assigned to this member count; None if it has no
    assignment yet."""
    if isinstance(partitions, _Given):
        if not partitions.once:
            return None
        partitions = {assigned.partition for assigned in consumer.assignment() if assigned.partition is not None}
    return partitions - ended


class _Undecided:
    """Prints once, after ten seconds without a record or at the end, that records are hidden because a transaction is
    open."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._since_s = time.monotonic()
        self._above: dict[int, int] = {}  # by partition: the last stable offset, which is below the high watermark
        self._noted = False

    def reached(self, partition: int, last_stable_offset: int, high_watermark: int) -> None:
        """All decided records were read."""
        if last_stable_offset < high_watermark:
            self._above[partition] = last_stable_offset
        else:
            self._above.pop(partition, None)

    def go_on(self, printed: Mapping[int, int]) -> None:
        """`printed`: partitions with newly printed records."""
        if printed:
            self._since_s, self._noted = time.monotonic(), False
            for partition in printed:
                self._above.pop(partition, None)
        elif time.monotonic() - self._since_s >= SILENCE_NOTED_S:
            self.tell()

    def tell(self) -> None:
        if self._noted or not self._above:
            return
        self._noted = True
        named = [f"{self._topic}-{index} from offset {at}" for index, at in sorted(self._above.items())[:_NAMED_MAX]]
        more = f" and {len(self._above) - _NAMED_MAX} more" if len(self._above) > _NAMED_MAX else ""
        note(
            f"thermocline: records of {', '.join(named)}{more} on are not shown until an open transaction ends; see "
            "`thermocline txn list --state Ongoing`"
        )


class _Silence:
    """Prints once, after ten seconds, that partitions with unread records deliver none, and why.

    librdkafka retries silently.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._since_s = time.monotonic()
        self._noted = False

    def end(self) -> None:
        """A record arrived, or nothing is unread."""
        self._since_s, self._noted = time.monotonic(), False

    def go_on(self, partitions: Collection[int]) -> None:
        """No record arrived from these partitions, which have records or an unknown end."""
        if self._noted or time.monotonic() - self._since_s < SILENCE_NOTED_S:
            return
        self._noted = True
        first = [f"{self._topic}-{partition}" for partition in sorted(partitions)[:_NAMED_MAX]]
        more = f" and {len(partitions) - _NAMED_MAX} more" if len(partitions) > _NAMED_MAX else ""
        why = broker_reason(self._bootstrap, self._topic) or "; the broker names no reason: see its log"
        note(
            f"thermocline: no records came from {', '.join(first)}{more} for {SILENCE_NOTED_S:.0f} s{why}; still "
            "waiting"
        )
