"""Stock clients log in by every mechanism, and nobody else does anything; a deleted user, a session that ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import AuthenticationFailedError
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.sasl_site import PASSWORD, SCRAM, client, command_config, token, write_properties
from tests.support.processes.site import thermocline
from tests.support.waiting import wait_until

MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")
pytestmark = [pytest.mark.timeout(180)]


@contextlib.contextmanager
def secured(directory: Path, *more: str) -> Iterator[BrokerProcess]:
    path = write_properties(directory, "offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0", *more)
    with running_broker(directory / "broker", None, "--config", str(path), listen=None) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all clients, with alice in every mechanism."""
    directory = tmp_path_factory.mktemp("sasl")
    with secured(directory) as found:
        admin = command_config(directory, "SCRAM-SHA-512", "broker")
        for mechanism in SCRAM:
            done = thermocline(
                *("user", "add", "alice", "--mechanism", mechanism, "--password-file", "-"),
                *("-b", found.kafka, "--command-config", str(admin)),
                stdin=PASSWORD + "\n",
            )
            assert done.returncode == 0, done.stderr
        yield found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(broker: BrokerProcess, mechanism: str) -> None:
    """Produces, and consumes in a group."""
    topic, config = f"rd-{mechanism}", {"bootstrap.servers": broker.kafka} | client(mechanism)
    failed: list[Any] = []
    producer = Producer(config | {"acks": "all"})
    producer.produce(topic, b"value", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(30) == 0 and failed == [None]
    consumer = Consumer(config | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(30)
        assert message is not None and message.value() == b"value"
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


class _AioToken(AioTokens):
    async def token(self) -> str:
        return token("alice")


def aio(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    found: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return found | {"sasl_oauth_token_provider": _AioToken()}
    return found | {"sasl_plain_username": "alice", "sasl_plain_password": password}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(broker: BrokerProcess, mechanism: str) -> None:
    topic = f"aio-{mechanism}"

    async def scenario() -> None:
        config = {"bootstrap_servers": broker.kafka} | aio(mechanism)
        async with AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **config) as consumer:
            message = await asyncio.wait_for(consumer.getone(), 30)
            assert message.value == b"value"

    asyncio.run(scenario())


def test_aiokafka_with_a_wrong_password(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, **aio("SCRAM-SHA-256", "wrong"))
        with pytest.raises((AuthenticationFailedError, AioError)):
            await producer.start()
        await producer.stop()

    asyncio.run(scenario())


class _Token(AbstractTokenProvider):
    def token(self) -> str:
        return token("alice")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: BrokerProcess, mechanism: str) -> None:
    topic, config = f"kp-{mechanism}", {"bootstrap_servers": broker.kafka} | aio(mechanism)
    if mechanism == "OAUTHBEARER":
        config["sasl_oauth_token_provider"] = _Token()
    producer = KafkaProducer(**config)
    assert producer.send(topic, b"value").get(30).offset == 0
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **config)
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, ""),  # plaintext
        (client("PLAIN", password="wrong"), "Invalid username or password"),
        (client("PLAIN", user="nobody"), "Invalid username or password"),
        (client("SCRAM-SHA-256", password="wrong"), "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        (client("SCRAM-SHA-256", user="nobody"), "invalid credentials with SASL mechanism SCRAM-SHA-256"),
    ],
)
def test_nobody_else_does_anything(broker: BrokerProcess, config: dict[str, Any], says: str) -> None:
    """No metadata without a login; the error is the same for a wrong user and a wrong password."""
    errors: list[str] = []
    admin = AdminClient(
        {"bootstrap.servers": broker.kafka, "error_cb": lambda error: errors.append(str(error))} | config
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    wait_until(lambda: (admin.poll(0.1), any(says in error for error in errors))[1], "librdkafka to say why", 10)


def test_a_deleted_user_cannot_log_in_any_more(broker: BrokerProcess, tmp_path: Path) -> None:
    """From the next login on; a changed password counts from then on too."""
    admin = ("-b", broker.kafka, "--command-config", str(command_config(tmp_path, "SCRAM-SHA-512", "broker")))

    def set_password(password: str) -> None:
        done = thermocline("user", "add", "mallory", "--password-file", "-", *admin, stdin=password)
        assert done.returncode == 0, done.stderr

    def gets_in(password: str) -> bool:
        config = command_config(tmp_path, "SCRAM-SHA-512", "mallory", password)
        found = thermocline("txn", "list", "-b", broker.kafka, "--command-config", str(config))
        assert found.returncode == 0 or "invalid credentials" in found.stderr, found.stderr
        return found.returncode == 0

    set_password("first")
    assert gets_in("first") and not gets_in("second")
    set_password("second")
    assert gets_in("second") and not gets_in("first")
    assert thermocline("user", "delete", "mallory", "--yes", *admin).returncode == 0
    assert not gets_in("second")
    again = thermocline("user", "delete", "mallory", "--yes", *admin)
    assert again.returncode == 1 and "there is no user mallory" in again.stderr


def test_clients_log_in_again_before_their_session_ends(tmp_path: Path) -> None:
    """connections.max.reauth.ms: librdkafka logs in again on the same connection, and a producer loses nothing; one
    that does not is disconnected."""
    with secured(tmp_path, "connections.max.reauth.ms=1500") as broker:
        failed: list[Any] = []
        producer = Producer({"bootstrap.servers": broker.kafka, "acks": "all"} | client("PLAIN"))
        began = time.monotonic()
        while time.monotonic() - began < 5:
            producer.produce("t", b"value", on_delivery=lambda error, _: failed.append(error))
            assert producer.flush(10) == 0
        assert set(failed) == {None}
        assert "session ended" not in broker.log()
