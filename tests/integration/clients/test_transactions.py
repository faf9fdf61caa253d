"""Transactions with librdkafka against processes: one broker and three, restarts, kills, and the command."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.processes.broker_process import start_broker
from tests.support.processes.ports import quiet_port
from tests.support.processes.site import Site, thermocline
from tests.support.processes.three_brokers import three
from tests.support.waiting import wait_until

PARTITIONS = 3
READ_S = 40.0


def create(bootstrap: str, topic: str, partitions: int = PARTITIONS, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    futures = admin.create_topics([NewTopic(topic, partitions, replicas)])
    futures[topic].result()


def producer(bootstrap: str, transactional_id: str, timeout_ms: int = 20_000) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms - 1_000,
            "log_level": 0,
        }
    )
    made.init_transactions(30)
    return made


def read(bootstrap: str, topic: str, isolation: str, partitions: int = PARTITIONS) -> list[str]:
    """All values up to the ends that this isolation level shows."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ends, until = [], set(), time.monotonic() + READ_S
    while len(ends) < partitions:
        assert time.monotonic() < until, (topic, isolation, ends)
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            found.append((message.value() or b"").decode())
        elif message.error().name() == "_PARTITION_EOF":
            ends.add(message.partition())
    consumer.close()
    return found


def wait_for(bootstrap: str, topic: str, expected: Sequence[str]) -> None:
    """Markers follow the answer of a commit."""
    until = time.monotonic() + READ_S
    while sorted(found := read(bootstrap, topic, "read_committed")) != sorted(expected):
        assert time.monotonic() < until, (Counter(found) - Counter(expected), Counter(expected) - Counter(found))


def write(made: Producer, mark: str, *, is_commit: bool, topic: str = "t") -> list[str]:
    made.begin_transaction()
    values = [f"{mark}-{index}" for index in range(9)]
    for index, value in enumerate(values):
        made.produce(topic, value.encode(), partition=index % PARTITIONS)
    made.flush(20)
    if is_commit:
        made.commit_transaction(30)
        return values
    made.abort_transaction(30)
    return []


def test_commits_are_seen_and_aborts_are_not_also_after_a_restart(directory_site: Site) -> None:
    """Walking skeleton: one broker, then the next process on its directory."""
    committed: list[str] = []
    with directory_site.broker() as broker:
        create(broker.kafka, "t")
        made = producer(broker.kafka, "tx")
        for round_ in range(4):
            committed += write(made, f"first{round_}", is_commit=round_ % 2 == 0)
        wait_for(broker.kafka, "t", committed)
        assert len(read(broker.kafka, "t", "read_uncommitted")) == 36
        made.begin_transaction()
        made.produce("t", b"open", partition=0)
        made.flush(20)
        broker.kill()
    with directory_site.broker() as broker:
        wait_for(broker.kafka, "t", committed)
        again = producer(broker.kafka, "tx")  # it ends what the first one left open
        committed += write(again, "second", is_commit=True)
        wait_for(broker.kafka, "t", committed)
        assert broker.stop() == 0


def test_the_successor_of_a_producer_fences_it(directory_site: Site) -> None:
    """E4: the first one can neither commit nor go on."""
    with directory_site.broker() as broker:
        create(broker.kafka, "t")
        first = producer(broker.kafka, "tx")
        first.begin_transaction()
        first.produce("t", b"zombie", partition=0)
        first.flush(20)
        second = producer(broker.kafka, "tx")
        committed = write(second, "second", is_commit=True)
        with pytest.raises(KafkaException) as fenced:
            first.commit_transaction(20)
        assert fenced.value.args[0].fatal()
        wait_for(broker.kafka, "t", committed)


def transform(bootstrap: str, made: Producer, consumer: Consumer, *, is_commit: bool) -> list[Message]:
    """One step of read, transform, write."""
    batch = [message for message in consumer.consume(7, 5.0) if message.error() is None]
    if not batch:
        return []
    made.begin_transaction()
    for message in batch:
        made.produce("out", b"x" + (message.value() or b""), partition=0)
    made.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20)
    made.flush(20)
    if is_commit:
        made.commit_transaction(30)
        return batch
    made.abort_transaction(30)
    for at in consumer.committed(consumer.assignment(), 20):
        consumer.seek(TopicPartition(at.topic, at.partition, max(at.offset, 0)))
    return []


def test_each_record_is_transformed_exactly_once(directory_site: Site) -> None:
    """KIP-447: positions and records count together, through aborts and a kill of the broker."""
    with three(directory_site) as cluster:
        everywhere = cluster.everywhere
        create(everywhere, "t", replicas=3)
        create(everywhere, "out", 1, replicas=3)
        written = write(producer(everywhere, "source"), "in", is_commit=True)
        written += write(producer(everywhere, "source"), "more", is_commit=True)
        made = producer(everywhere, "tx")
        consumer = Consumer(
            {
                "bootstrap.servers": everywhere,
                "group.id": "transform",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe(["t"])
        done, until = 0, time.monotonic() + 90
        for step in itertools.count():
            assert time.monotonic() < until, done
            done += len(transform(everywhere, made, consumer, is_commit=step % 3 != 0))
            if step == 2:
                cluster.kill(1)
                cluster.start(1)
            if done == len(written):
                break
        assert sorted(read(everywhere, "out", "read_committed", 1)) == sorted(f"x{value}" for value in written)
        committed = consumer.committed([TopicPartition("t", index) for index in range(PARTITIONS)], 20)
        ends = [consumer.get_watermark_offsets(TopicPartition("t", index), 20)[1] for index in range(PARTITIONS)]
        consumer.close()
        positions = [at.offset for at in committed]
        assert all(0 < at <= end for at, end in zip(positions, ends, strict=True)), (positions, ends)
        fresh = Consumer(
            {"bootstrap.servers": everywhere, "group.id": "transform", "isolation.level": "read_committed"}
        )
        fresh.assign([TopicPartition("t", index, at) for index, at in enumerate(positions)])
        assert not [message for message in fresh.consume(1, 3.0) if message.error() is None]
        fresh.close()


def test_kills_lose_no_commit_and_show_no_abort(directory_site: Site) -> None:
    """Three brokers, three producers, a kill every few seconds: coordinators and leaders move under them."""
    with three(directory_site) as cluster:
        everywhere = cluster.everywhere
        create(everywhere, "t", replicas=3)
        committed: list[str] = []
        unknown: list[str] = []
        rng, stop = random.Random(1), threading.Event()

        def work(name: str) -> None:
            made = producer(everywhere, name)
            for round_ in itertools.count():
                if stop.is_set():
                    return
                is_commit, mark = round_ % 4 != 3, f"{name}.{round_}"
                try:
                    committed.extend(write(made, mark, is_commit=is_commit))
                except KafkaException as failed:
                    if is_commit:
                        unknown.append(mark)
                    if not failed.args[0].retriable() or failed.args[0].fatal():
                        made = producer(everywhere, name)
                    elif failed.args[0].txn_requires_abort():
                        made.abort_transaction(30)
                    else:
                        made = producer(everywhere, name)

        workers = [threading.Thread(target=work, args=(f"w{index}",)) for index in range(3)]
        for worker in workers:
            worker.start()
        for _ in range(4):
            time.sleep(4)
            node_id = rng.choice([1, 2, 3])
            cluster.kill(node_id)
            cluster.start(node_id)
        stop.set()
        for worker in workers:
            worker.join(120)
            assert not worker.is_alive()
        for index in range(3):
            producer(everywhere, f"w{index}")  # ends what a failed one left open
        time.sleep(3)
        seen = Counter(read(everywhere, "t", "read_committed"))
        assert max(seen.values()) == 1
        assert not set(committed) - set(seen)
        surplus = {value.rpartition("-")[0] for value in set(seen) - set(committed)}
        assert surplus <= set(unknown), surplus
        whole = Counter(value.rpartition("-")[0] for value in seen)
        assert set(whole.values()) == {9}
        assert len(committed) > 9 * 20


def test_the_command_shows_what_is_open(directory_site: Site) -> None:
    """`txn list` and `describe`; `abort` refuses what a coordinator knows, and what is not open."""
    with directory_site.broker() as broker:
        create(broker.kafka, "t")
        made = producer(broker.kafka, "shown")
        made.begin_transaction()
        made.produce("t", b"open", partition=1)
        made.flush(20)
        listed = thermocline("txn", "list", "--state", "Ongoing", "--json", "-b", broker.kafka)
        (row,) = [json.loads(line) for line in listed.stdout.splitlines()]
        assert (row["transactional_id"], row["state"], row["coordinator"]) == ("shown", "Ongoing", 1)
        described = thermocline("txn", "describe", "shown", "--json", "-b", broker.kafka)
        assert json.loads(described.stdout)["partitions"] == "t-1"
        refused = thermocline(
            "txn", "abort", "t-1", "--producer-id", str(row["producer_id"]), "--yes", "-b", broker.kafka
        )
        assert refused.returncode == 1 and "shown, which is Ongoing" in refused.stderr
        made.commit_transaction(20)
        refused = thermocline("txn", "abort", "t-1", "--producer-id", "77", "--yes", "-b", broker.kafka)
        assert refused.returncode == 1 and "no open transaction" in refused.stderr
        assert thermocline("txn", "describe", "nobody", "-b", broker.kafka).returncode == 1


def test_an_open_transaction_is_named_where_it_holds_back(directory_site: Site) -> None:
    """`consume` says that records are not shown, `tier status` and `tier seal --wait` that they are not copied."""
    with directory_site.broker() as broker:
        create(broker.kafka, "t", 1)
        made = producer(broker.kafka, "open", 60_000)
        made.begin_transaction()
        made.produce("t", b"held", partition=0)
        assert made.flush(20) == 0
        shown = thermocline("consume", "-t", "t", "-e", "-b", broker.kafka)
        assert (
            shown.stdout == "" and "t-0 from offset 0 on are not shown until an open transaction ends" in shown.stderr
        )
        assert thermocline("tier", "seal", "--topic", "t", "-b", broker.kafka).returncode == 0

        def said() -> str:
            return thermocline("tier", "status", "--topic", "t", "-b", broker.kafka).stdout

        wait_until(lambda: "blocked by transaction: 1 partition, t-0: nothing from offset 0 on" in said(), "it says so")
        made.commit_transaction(20)
        wait_until(lambda: "blocked by transaction" not in said(), "copies go on")
        shown = thermocline("consume", "-t", "t", "-n", "1", "-b", broker.kafka)
        assert (shown.stdout, shown.stderr) == ("held\n", "")


def test_a_transaction_that_no_coordinator_knows_is_aborted(tmp_path: Path) -> None:
    """`__transaction_state` is lost: the transaction hangs in its partition, and committed reads stand still before it
    until `txn abort`."""
    address = f"127.0.0.1:{quiet_port()}"
    broker = start_broker(tmp_path / "data", listen=address)
    try:
        create(address, "t")
        opened = producer(address, "lost")
        opened.begin_transaction()
        opened.produce("t", b"open", partition=0)
        assert opened.flush(20) == 0
        row = json.loads(thermocline("txn", "describe", "lost", "--json", "-b", address).stdout)
        broker.kill()
        for place in (tmp_path / "data").glob("__transaction_state-*"):
            shutil.rmtree(place)
        broker = start_broker(tmp_path / "data", listen=address)
        plain = Producer({"bootstrap.servers": address, "log_level": 0})
        plain.produce("t", b"behind", partition=0)
        assert plain.flush(20) == 0
        assert thermocline("txn", "describe", "lost", "-b", address).returncode == 1
        assert read(address, "t", "read_committed") == []
        args = ("txn", "abort", "t-0", "--producer-id", str(row["producer_id"]), "--yes", "-b", address)
        aborted = thermocline(*args)
        assert aborted.returncode == 0, aborted.stderr
        wait_for(address, "t", ["behind"])
    finally:
        broker.kill()
