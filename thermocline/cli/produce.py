"""`thermocline produce`: lines of stdin become records, through the stock producer.

Owns flags (kcat's letters) and the splitting of a line into key and value. Always true: exit 0 means that every record
was acknowledged.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from thermocline.cli.arguments import add_bootstrap, key_value, natural
from thermocline.cli.outcome import CommandFailed, Exit
from thermocline.cli.output import Progress, note

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from thermocline.cli.arguments import Parser, Subparsers

_FLUSH_TIMEOUT_S = 60.0
_PROGRESS_RECORDS = 10_000


def register(nouns: Subparsers[Parser]) -> None:
    """Add the command to the command line."""
    produce = nouns.add_parser(
        "produce",
        help="write lines of stdin to a topic",
        description="Each line of stdin becomes a record. Ends with 0 only when all were acknowledged.",
        example="seq 1 1000 | thermocline produce -t numbers\n"
        "echo 'alice:hello' | thermocline produce -t greetings -K :",
    )
    add = produce.add_argument
    add("-t", "--topic", required=True, metavar="T")
    add("-p", "--partition", type=natural, metavar="P", help="default: by key, or spread")
    keys = produce.add_mutually_exclusive_group()
    keys.add_argument("-k", "--key", metavar="KEY", help="the key of every record")
    keys.add_argument("-K", "--key-separator", metavar="SEP", help="a line is key, separator, value")
    add("-X", dest="extra", type=key_value, action="append", default=[], metavar="K=V", help="a librdkafka config")
    add_bootstrap(produce)
    produce.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read to the end of stdin, wait for every acknowledgement."""
    from confluent_kafka import Producer

    from thermocline.cli.clients import client_config, require_broker, require_name

    config = {"linger.ms": 5, "acks": "all"} | client_config(arguments.bootstrap_server, arguments.extra)
    producer = Producer(config)
    require_broker(producer, arguments.bootstrap_server)
    require_name(producer, arguments.topic)
    outcome = _Outcome()
    separator = None if arguments.key_separator is None else _unescape(arguments.key_separator)
    key = None if arguments.key is None else arguments.key.encode()
    for line in sys.stdin.buffer:
        record_key, value = split_line(line, separator)
        _send(producer, arguments, key if separator is None else record_key, value, outcome)
        if outcome.failure is not None:
            break
    outcome.left = producer.flush(_FLUSH_TIMEOUT_S)
    return outcome.report(arguments.topic)


class _Outcome:
    """Acknowledgements and the first failure."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failure: KafkaError | None = None
        self.left = 0
        self._progress = Progress()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
            if self.acknowledged % _PROGRESS_RECORDS == 0:
                self._progress.show(f"{self.acknowledged} records acknowledged")
        else:
            self.failure = self.failure or error

    def report(self, topic: str) -> int:
        from thermocline.cli.clients import plainly

        self._progress.done()
        if self.failure is not None:
            raise CommandFailed(
                plainly(f"producing to {topic} ({self.acknowledged} records were acknowledged)", self.failure)
            )
        if self.left:
            raise CommandFailed(
                f"{self.left} record{'s' * (self.left > 1)} to {topic} not acknowledged in {_FLUSH_TIMEOUT_S:.0f} s; "
                "see GET /healthz and the broker's log"
            )
        if sys.stderr.isatty():
            note(f"{self.acknowledged} records acknowledged")
        return Exit.DONE


def _send(
    producer: Producer, arguments: argparse.Namespace, key: bytes | None, value: bytes, outcome: _Outcome
) -> None:
    from confluent_kafka import KafkaException

    where: dict[str, Any] = {} if arguments.partition is None else {"partition": arguments.partition}
    while True:
        try:
            producer.produce(arguments.topic, value=value, key=key, on_delivery=outcome.delivered, **where)
            producer.poll(0)
            return
        except BufferError:  # librdkafka's queue is full: let acknowledgements in
            producer.poll(0.1)
        except KafkaException as refused:
            outcome.failure = outcome.failure or refused.args[0]
            return


def split_line(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Key and value of a line; a line without the separator has no key."""
    line = line.removesuffix(b"\n")
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


def _unescape(text: str) -> bytes:
    """A separator as a shell passes it: `\\t` is a tab."""
    return text.replace("\\t", "\t").replace("\\n", "\n").encode()
