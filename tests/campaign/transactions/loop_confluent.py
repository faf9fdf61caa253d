"""A loop of confluent-kafka (see __init__.py): `python -m tests.campaign.transactions.loop_confluent ACCESS …`."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.support.clients.access import Access, Login

T = TypeVar("T")
RECORDS_MAX: Final = 1_000
WAIT_S: Final = 0.2
CALL_S: Final = 30.0
CANNOT_GO_ON: Final = 3
STUCK_S: Final = 45.0
"""librdkafka up to 2.16.0 ignores the time-out of send_offsets_to_transaction (its issue 5456), and never asks again
for a group's coordinator whose broker left the metadata meanwhile (its issue 5511): the call may last for ever."""
QUICK: Final = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 300,
    "retry.backoff.ms": 50,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 5_000,
}


class Loop:
    """Always true: a batch's positions are committed with the member and generation that it was read in."""

    def __init__(self, access: Access, source: str, sink: str, group: str, name: str, life: int, aborted: int) -> None:
        self._source, self._sink, self._name, self._life, self._aborted = source, sink, name, life, aborted
        self._rng = random.Random(f"{name} {life}")
        self._transactions = 0
        self._has_rebalanced = False
        self._producer = Producer(
            {
                **QUICK,
                **access.confluent(),
                "transactional.id": name,
                "transaction.timeout.ms": 12_000,
                "message.timeout.ms": 10_000,
                "linger.ms": 20,
                "batch.size": 65_536,
            }
        )
        self._consumer = Consumer(
            {
                **QUICK,
                **access.confluent(),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "max.poll.interval.ms": 60_000,
                "heartbeat.interval.ms": 1_000,
                "fetch.wait.max.ms": 100,
                "check.crcs": True,
            }
        )

    def run(self, ending: threading.Event) -> None:
        self._tried(lambda: self._producer.init_transactions(CALL_S))
        self._consumer.subscribe(
            [self._source], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not ending.is_set():
            batch = [m for m in self._consumer.consume(RECORDS_MAX, WAIT_S) if m.error() is None]
            if self._has_rebalanced:  # some of the batch may be of partitions that another member has by now
                self._has_rebalanced = False
                self._rewind()
            elif batch:
                self._copy(batch)
        self._consumer.close()

    def _assigned(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        self._has_rebalanced = True
        self._metadata = consumer.consumer_group_metadata()  # while it rejoins later, this says it is no member

    def _revoked(self, _: Consumer, __: list[TopicPartition]) -> None:
        self._has_rebalanced = True

    def _copy(self, batch: Sequence[Message]) -> None:
        self._transactions += 1
        means_to_abort = self._rng.randrange(1000) < self._aborted
        label = f"{self._name}.{self._life}.{self._transactions}"
        head = f"{'a' if means_to_abort else 'c'} {len(batch)} {label} ".encode()
        ends: dict[int, int] = {}
        began = time.monotonic()
        try:
            self._producer.begin_transaction()
            for message in batch:
                self._producer.produce(self._sink, head + message.value(), partition=message.partition())
                ends[message.partition()] = message.offset() + 1
            positions = [TopicPartition(self._source, *end) for end in ends.items()]
            with _given_up(STUCK_S, f"{label}: send_offsets_to_transaction"):
                self._tried(lambda: self._producer.send_offsets_to_transaction(positions, self._metadata, CALL_S))
            if not means_to_abort:
                self._tried(lambda: self._producer.commit_transaction(CALL_S))
                tell(f"committed {len(batch)} {_ms_since(began)}")
                return
        except KafkaException as failed:
            print(f"{label}: {failed}", file=sys.stderr, flush=True)
            if not failed.args[0].txn_requires_abort():
                raise
        self._tried(lambda: self._producer.abort_transaction(CALL_S))
        tell(f"aborted {len(batch)} {_ms_since(began)}")
        self._rewind()

    def _rewind(self) -> None:
        """To the committed positions, which are asked for until no transaction is under way over them."""
        places = self._consumer.assignment()
        for at in self._tried(lambda: self._consumer.committed(places, CALL_S)) if places else ():
            if at.error is not None:
                raise KafkaException(at.error)
            self._consumer.seek(TopicPartition(at.topic, at.partition, max(at.offset, 0)))

    def _tried(self, call: Callable[[], T]) -> T:
        """The same call again while librdkafka says so, which it does when a call's time is over."""
        while True:
            try:
                return call()
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise
                print(f"{self._name}.{self._life}.{self._transactions}, again: {failed}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _given_up(after_s: float, what: str) -> Iterator[None]:
    """End this process when the block is not left by then: its client cannot go on."""

    def give_up() -> None:
        print(f"cannot go on: {what} does not return within {after_s:.0f} s", file=sys.stderr, flush=True)
        os._exit(CANNOT_GO_ON)

    timer = threading.Timer(after_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _ms_since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


def tell(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    file, source, sink, group, name, life, aborted = sys.argv[1:]
    given = json.loads(Path(file).read_text())
    access = Access(given["bootstrap"], Login(**given["login"]) if given["login"] else None)
    faulthandler.register(signal.SIGQUIT)  # as of a JVM and of Go: all threads' stacks
    ending = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        Loop(access, source, sink, group, name, int(life), int(aborted)).run(ending)
    except KafkaException as failed:
        print(f"cannot go on: {failed}", file=sys.stderr, flush=True)
        return CANNOT_GO_ON
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
