"""`thermocline produce`: turns lines of stdin into records through the stock producer. Flags have kcat's letters.

Exit 0 means that every record was acknowledged. If the broker creates the topic, the command reports it.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from thermocline.cli.records.produce_outcome import ProduceOutcome
from thermocline.cli.terminal.arguments import add_bootstrap, filled, natural
from thermocline.cli.terminal.outcome import no_partition
from thermocline.cli.terminal.output import note

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from thermocline.cli.terminal.arguments import Parser, Subparsers

_DELIVERY_TIMEOUT_MS = 60_000
_TIMEOUT_NAMES = ("message.timeout.ms", "delivery.timeout.ms")  # the second name is an alias of the first
_FLUSH_MARGIN_S = 5.0  # librdkafka checks for late records once a second
_DEFAULTS = {
    "linger.ms": 5,
    "acks": "all",
    "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
    # The topic's max.message.bytes decides, not the client's own limit of 1 MB.
    "message.max.bytes": 100_000_000,
}


def register(nouns: Subparsers[Parser]) -> None:
    produce = nouns.add_parser(
        "produce",
        help="write lines of stdin to a topic",
        description="Each line of stdin becomes a record. The exit code is 0 only if all records were acknowledged. "
        "Otherwise the command names the first line that was not acknowledged, and the reason.",
        example="seq 1 1000 | thermocline produce -t numbers\n"
        "echo 'alice:hello' | thermocline produce -t greetings -K :",
    )
    add = produce.add_argument
    add("-t", "--topic", required=True, type=filled, metavar="T")
    add("-p", "--partition", type=natural, metavar="P", help="default: chosen by the key, or spread evenly")
    keys = produce.add_mutually_exclusive_group()
    keys.add_argument("-k", "--key", metavar="KEY", help="the key of every record")
    keys.add_argument("-K", "--key-separator", type=filled, metavar="SEP", help="a line is key, separator, value")
    add_bootstrap(produce)
    produce.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read stdin to its end and wait for every acknowledgement."""
    from confluent_kafka import Producer

    from thermocline.cli.clients.stock import make_client

    producer = make_client(Producer, arguments.bootstrap_server, _DEFAULTS, arguments.extra, {})
    _require_topic(producer, arguments)
    outcome = ProduceOutcome()
    timeout_s = _flush_timeout_s(arguments.extra)
    try:
        _send_lines(producer, arguments, outcome)
        outcome.left = producer.flush(timeout_s)
    except KeyboardInterrupt:  # lines read before are still delivered
        outcome.interrupted = True
        outcome.left = producer.flush(timeout_s)
    return outcome.report(arguments.bootstrap_server, arguments.topic)


def _require_topic(producer: Producer, arguments: argparse.Namespace) -> None:
    """Print a note if the broker creates the topic. Raises CommandFailed when the topic or the partition does not
    exist."""
    from thermocline.cli.clients.stock import created_topic, require_broker

    found = require_broker(producer, arguments.bootstrap_server).topics.get(arguments.topic)
    if found is None:
        found = created_topic(producer, arguments.bootstrap_server, arguments.topic)
        count = len(found.partitions)
        note(
            f"thermocline: topic {arguments.topic} did not exist: the broker created it with {count} "
            f"partition{'s' * (count > 1)}"
        )
    if arguments.partition is not None and arguments.partition >= len(found.partitions):
        raise no_partition(arguments.topic, arguments.partition, len(found.partitions))


def _send_lines(producer: Producer, arguments: argparse.Namespace, outcome: ProduceOutcome) -> None:
    separator = None if arguments.key_separator is None else _unescape(arguments.key_separator)
    key = None if arguments.key is None else arguments.key.encode()
    for number, line in enumerate(sys.stdin.buffer, 1):
        record_key, value = split_line(line, separator)
        _send(producer, arguments, key if separator is None else record_key, value, outcome, number)
        if outcome.refused:
            outcome.read_to_end = False
            break


def _send(
    producer: Producer,
    arguments: argparse.Namespace,
    key: bytes | None,
    value: bytes,
    outcome: ProduceOutcome,
    number: int,
) -> None:
    from confluent_kafka import KafkaException

    where: dict[str, Any] = {} if arguments.partition is None else {"partition": arguments.partition}
    outcome.lines = number
    while True:
        try:
            producer.produce(
                arguments.topic, value=value, key=key, on_delivery=partial(outcome.delivered, number), **where
            )
            producer.poll(0)
            return
        except BufferError:  # librdkafka's queue is full: process acknowledgements
            producer.poll(0.1)
            if outcome.refused:  # records in the queue time out one by one, so stop
                outcome.lines = number - 1
                return
        except KafkaException as refused:
            outcome.refuse(number, refused.args[0], len(value))
            return


def _flush_timeout_s(extra: list[tuple[str, str]]) -> float:
    """After this time librdkafka has reported every record."""
    timeout_ms = _DELIVERY_TIMEOUT_MS
    for name, value in extra:
        if name in _TIMEOUT_NAMES:
            timeout_ms = int(value)  # librdkafka accepted it already
    return timeout_ms / 1000 + _FLUSH_MARGIN_S


def split_line(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Key and value of a line; a line without the separator has no key."""
    line = line.removesuffix(b"\n")
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


def _unescape(text: str) -> bytes:
    r"""A separator as typed in a shell: `\t` is a tab."""
    return text.replace("\\t", "\t").replace("\\n", "\n").encode()
