"""Stock clients over TLS and mutual TLS on one broker, and `openssl s_client` at its door."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition

from tests.support.net.certificates import Authority
from tests.support.processes.broker_process import BrokerProcess, running_broker

pytestmark = pytest.mark.timeout(120)

RECORDS = [b"%d" % number * 500 for number in range(1000)]


class Place:
    """Files of a cluster: its CA, the broker's store, a client's."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority()
        self.ca = self.authority.write(directory / "ca.pem")
        self.broker = self.authority.sign("broker").write(directory / "broker.pem")
        self.client = self.authority.sign("client").write(directory / "client.pem")
        self.stranger = Authority("Another CA").sign("client").write(directory / "stranger.pem")

    def settings(self, **configs: object) -> dict[str, object]:
        return {"ssl.keystore.location": self.broker, "ssl.truststore.location": self.ca, **configs}

    def librdkafka(self, address: str, certificate: str | None = None) -> dict[str, str | int]:
        own = {} if certificate is None else {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
        return {
            "bootstrap.servers": address,
            "security.protocol": "ssl",
            "ssl.ca.location": self.ca,
            "log_level": 0,
            **own,
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["none", "required"])
def broker(
    request: pytest.FixtureRequest, place: Place, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    settings = place.settings(**{"ssl.client.auth": request.param})
    directory = tmp_path_factory.mktemp("tls-broker")
    with running_broker(directory / "data", None, listen="SSL://127.0.0.1:0", settings=settings) as one:
        one.ready["auth"] = request.param
        yield one


def test_confluent_kafka(broker: BrokerProcess, place: Place) -> None:
    """A MiB of records with acks=all, and back through a group."""
    settings = place.librdkafka(broker.kafka, place.client)
    producer = Producer({**settings, "acks": "all"})
    failed: list[KafkaError | None] = []
    for record in RECORDS:
        producer.produce("confluent", record, callback=lambda error, _: failed.append(error))
    assert producer.flush(30) == 0 and not any(failed)
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    found: list[bytes | None] = []
    while len(found) < len(RECORDS):
        (message,) = consumer.consume(1, timeout=30)
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    assert found == RECORDS


def test_kafka_python(broker: BrokerProcess, place: Place) -> None:
    options = {
        "bootstrap_servers": broker.kafka,
        "security_protocol": "SSL",
        "ssl_cafile": place.ca,
        "ssl_certfile": place.client,
        "ssl_keyfile": place.client,
    }
    producer = KafkaProducer(**options)
    for record in RECORDS:
        producer.send("python", record)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(**options, consumer_timeout_ms=30_000)
    consumer.assign([PyTopicPartition("python", 0)])
    consumer.seek_to_beginning()
    found = [next(consumer).value for _ in RECORDS]
    consumer.close()
    assert found == RECORDS


def test_aiokafka(broker: BrokerProcess, place: Place) -> None:
    async def scenario() -> list[bytes | None]:
        context = ssl.create_default_context(cafile=place.ca)
        context.load_cert_chain(place.client)
        options = {"bootstrap_servers": broker.kafka, "security_protocol": "SSL", "ssl_context": context}
        async with AIOKafkaProducer(**options) as producer:
            for record in RECORDS:
                await producer.send("aio", record)
            await producer.flush()
        async with AIOKafkaConsumer("aio", auto_offset_reset="earliest", **options) as consumer:
            return [(await asyncio.wait_for(anext(consumer), 30)).value for _ in RECORDS]

    assert asyncio.run(scenario()) == RECORDS


def test_a_certificate_of_another_ca_is_refused(broker: BrokerProcess, place: Place) -> None:
    """And no certificate where one is required."""
    if broker.ready["auth"] == "none":
        pytest.skip("nothing is asked for")
    for certificate in (None, place.stranger):
        admin = AdminClient(place.librdkafka(broker.kafka, certificate))
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)


def test_a_client_that_does_not_trust_the_broker(broker: BrokerProcess, place: Place, tmp_path: Path) -> None:
    other = Authority("Another CA").write(tmp_path / "other.pem")
    admin = AdminClient({**place.librdkafka(broker.kafka, place.client), "ssl.ca.location": other})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)


def s_client(broker: BrokerProcess, place: Place, *flags: str, typed: str = "") -> str:
    command = ["openssl", "s_client", "-connect", broker.kafka, "-CAfile", place.ca, "-cert", place.client, *flags]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("-tls1_3",), "TLS_AES_256_GCM_SHA384"),
        (("-tls1_2",), "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (("-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"), "TLS_CHACHA20_POLY1305_SHA256"),
        (("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), "Cipher is (NONE)"),
        (("-tls1", "-cipher", "ALL:@SECLEVEL=0"), "Cipher is (NONE)"),
        (("-tls1_2", "-cipher", "AES256-GCM-SHA384"), "Cipher is (NONE)"),  # no forward secrecy
        (("-tls1_2", "-cipher", "NULL:aNULL:@SECLEVEL=0"), "Cipher is (NONE)"),
        (("-tls1_2", "-comp"), "Compression: NONE"),
        (("-verify_return_error", "-verify_hostname", "localhost"), "Verify return code: 0 (ok)"),
    ],
)
def test_what_a_scan_finds(broker: BrokerProcess, place: Place, flags: tuple[str, ...], says: str) -> None:
    assert says in s_client(broker, place, *flags)


def test_a_request_for_a_certificate_names_no_authority(broker: BrokerProcess, place: Place) -> None:
    """Kafka names those of its trust store; Python's `ssl` has no way to."""
    if broker.ready["auth"] == "none":
        pytest.skip("nothing is asked for")
    said = s_client(broker, place, "-tls1_2")
    assert "No client certificate CA names sent" in said and "Client Certificate Types" in said


def test_renegotiation_is_refused(broker: BrokerProcess, place: Place) -> None:
    """`R` asks for one; the broker says no, and the connection ends on the client's side."""
    assert "no renegotiation" in s_client(broker, place, "-tls1_2", "-legacy_renegotiation", typed="R\n")
