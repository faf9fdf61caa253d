"""`thermocline consume`: records of a topic to stdout, through the stock consumer.

Owns flags (kcat's letters), the output format, and when to end. Always true: what `-n` and `-e` ask for is exact; with
a group, offsets are committed for what was written out, not for what was merely fetched.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thermocline.cli.arguments import add_bootstrap, checked, key_value, natural, positive
from thermocline.cli.outcome import CommandFailed, Exit
from thermocline.cli.output import note

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

    from thermocline.cli.arguments import Parser, Subparsers

_BATCH = 1000  # records taken from librdkafka at once
_POLL_S = 0.2
_OFFSET = re.compile(r"beginning|end|-?\d+|@\d+")


def register(nouns: Subparsers[Parser]) -> None:
    """Add the command to the command line."""
    consume = nouns.add_parser(
        "consume",
        help="read a topic to stdout",
        description="Print records, from the beginning unless -o says otherwise, until stopped, -n, or -e.",
        example="thermocline consume -t numbers -e\n"
        "thermocline consume -t orders -p 0 -o 1000 -n 5 -f '%o %k: %s\\n'\n"
        "thermocline consume -t orders -o @1735689600000 -e",
    )
    add = consume.add_argument
    add("-t", "--topic", required=True, metavar="T")
    add("-p", "--partition", type=natural, metavar="P", help="default: all")
    add("-o", "--offset", type=checked(_offset), default="beginning", metavar="beginning|end|N|@ms",
        help="where to start; -N: N before the end, @ms: the first record of that time or later")  # fmt: skip
    add("-n", "--count", type=positive, metavar="COUNT", help="end after this many records")
    add("-e", "--exit-at-end", action="store_true", help="end when the end of every partition is reached")
    add("-f", "--format", default="%s\\n", metavar="FORMAT",
        help="%%s value %%k key %%o offset %%p partition %%t topic %%T timestamp in ms %%S size %%K key size "
        "%%h headers; default '%%s\\n'")  # fmt: skip
    add("-g", "--group", metavar="GROUP", help="as a member of a consumer group; commits what was printed")
    add("-X", dest="extra", type=key_value, action="append", default=[], metavar="K=V", help="a librdkafka config")
    add_bootstrap(consume)
    consume.set_defaults(run=run)


def _offset(text: str) -> str:
    if not _OFFSET.fullmatch(text):
        raise ValueError(f"{text!r} is no offset; write beginning, end, N, -N or @ms")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Consume until told to end."""
    from confluent_kafka import Consumer

    from thermocline.cli.clients import client_config, require_broker

    if arguments.group is not None and (
        arguments.partition is not None or arguments.offset not in ("beginning", "end")
    ):
        raise CommandFailed(
            "with -g the group decides on partitions and offsets: no -p, and -o beginning|end", Exit.USAGE
        )
    consumer = Consumer(_consumer_config(arguments) | client_config(arguments.bootstrap_server, arguments.extra))
    require_broker(consumer, arguments.bootstrap_server)
    try:
        if arguments.group is not None:
            consumer.subscribe([arguments.topic])
            partitions: set[int] | None = None
        else:
            starts = _starts(consumer, arguments)
            consumer.assign(starts)
            partitions = {start.partition for start in starts}
        _print_records(consumer, arguments, partitions)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    return Exit.DONE


def _consumer_config(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "group.id": arguments.group or "thermocline-cli",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "latest" if arguments.offset == "end" else "earliest",
        # librdkafka's defaults stall a reader that is faster than the network (1 s pauses when its queue is full).
        "fetch.queue.backoff.ms": 5,
    }


def _starts(consumer: Consumer, arguments: argparse.Namespace) -> list[TopicPartition]:
    """Each partition with the offset to start at."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    from thermocline.cli.clients import REQUEST_TIMEOUT_S, failing

    topic, offset = arguments.topic, arguments.offset
    with failing(f"reading topic {topic}"):
        found = consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(topic)
        if found is None:
            raise CommandFailed(f"there is no topic {topic}; see `thermocline topic list`")
        indexes = sorted(found.partitions) if arguments.partition is None else [arguments.partition]
        if arguments.partition is not None and arguments.partition not in found.partitions:
            raise CommandFailed(f"topic {topic} has no partition {arguments.partition}; it has {len(found.partitions)}")
        if offset.startswith("@"):
            asked = [TopicPartition(topic, index, int(offset[1:])) for index in indexes]
            return list(consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S))
        if offset.startswith("-"):
            return [_before_end(consumer, TopicPartition(topic, index), -int(offset)) for index in indexes]
        if offset.isdecimal():
            return [_at_offset(consumer, TopicPartition(topic, index, int(offset))) for index in indexes]
    start = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}[offset]
    return [TopicPartition(topic, index, start) for index in indexes]


def _at_offset(consumer: Consumer, partition: TopicPartition) -> TopicPartition:
    """From that offset, or the nearest there is, said aloud: the client's own reset would begin anew in silence."""
    first, end = _bounds(consumer, partition)
    asked, partition.offset = partition.offset, min(max(partition.offset, first), end)
    if partition.offset != asked:
        where = f"{partition.topic}-{partition.partition}"
        note(f"thermocline: {where} holds offsets {first} to {end}, not {asked}: reading from {partition.offset}")
    return partition


def _before_end(consumer: Consumer, partition: TopicPartition, count: int) -> TopicPartition:
    first, end = _bounds(consumer, partition)
    partition.offset = max(first, end - count)
    return partition


def _bounds(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The first offset and the end."""
    from thermocline.cli.clients import REQUEST_TIMEOUT_S

    found = consumer.get_watermark_offsets(partition, timeout=REQUEST_TIMEOUT_S)
    if found is None:
        raise CommandFailed(f"the end of {partition.topic}-{partition.partition} is not known: no answer in time")
    first, end = found
    return first, end


def _print_records(consumer: Consumer, arguments: argparse.Namespace, partitions: set[int] | None) -> None:
    from confluent_kafka import KafkaError, TopicPartition

    from thermocline.cli.clients import plainly

    render = renderer(arguments.format)
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
                assert index is not None and offset is not None  # only events without a record lack them
                out.write(render(message))
                ended.discard(index)
                printed[index] = offset + 1
                left = None if left is None else left - 1
            elif error.code() == KafkaError._PARTITION_EOF and index is not None:
                ended.add(index)
            elif not error.retriable():
                raise CommandFailed(plainly(f"reading {arguments.topic}", error))
        out.flush()
        if arguments.group is not None and printed:
            done = [TopicPartition(arguments.topic, index, offset) for index, offset in printed.items()]
            consumer.commit(offsets=done, asynchronous=False)
        if arguments.exit_at_end and _at_end(consumer, ended, partitions):
            return


def _at_end(consumer: Consumer, ended: set[int], partitions: set[int] | None) -> bool:
    """Every partition that is read was read to its end. `partitions` None: whatever the group assigned."""
    if partitions is None:
        partitions = {assigned.partition for assigned in consumer.assignment()}
        return bool(partitions) and partitions <= ended
    return partitions <= ended


_TOKENS: dict[str, Callable[[Any], bytes]] = {
    "%s": lambda m: m.value() or b"",
    "%k": lambda m: m.key() or b"",
    "%o": lambda m: b"%d" % m.offset(),
    "%p": lambda m: b"%d" % m.partition(),
    "%t": lambda m: m.topic().encode(),
    "%T": lambda m: b"%d" % m.timestamp()[1],
    "%S": lambda m: b"-1" if m.value() is None else b"%d" % len(m.value()),
    "%K": lambda m: b"-1" if m.key() is None else b"%d" % len(m.key()),
    "%h": lambda m: b",".join(name.encode() + b"=" + (value or b"") for name, value in m.headers() or []),
    "%%": lambda m: b"%",
    "\\n": lambda m: b"\n",
    "\\t": lambda m: b"\t",
    "\\\\": lambda m: b"\\",
}
_TOKEN = re.compile("|".join(re.escape(token) for token in _TOKENS))


def renderer(template: str) -> Callable[[Message], bytes]:
    """A function from a record to its bytes in the output, after kcat's `-f`."""
    parts: list[Callable[[Any], bytes]] = []
    at = 0
    for found in _TOKEN.finditer(template):
        parts += _literal(template[at : found.start()])
        parts.append(_TOKENS[found[0]])
        at = found.end()
    parts += _literal(template[at:])
    if parts == [_TOKENS["%s"], _TOKENS["\\n"]]:
        return lambda message: (message.value() or b"") + b"\n"  # the default, without the loop
    return lambda message: b"".join(part(message) for part in parts)


def _literal(text: str) -> list[Callable[[Any], bytes]]:
    return [lambda message: text.encode()] if text else []
