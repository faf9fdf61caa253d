"""aiokafka's own tests of SASL, ACLs and TLS, told again over SASL_SSL: its package holds none of its tests.

The scenarios are those of `tests/test_sasl.py`, `test_ssl_consume` of `tests/test_consumer.py` and
`test_create_ssl_context` of `tests/test_helpers.py` of aiokafka 0.14 (Apache License 2.0), each under its name there.
What differs: a topic, a group and a transactional id of its own for each, and ACLs by `thermocline acl` where they run
Kafka's tool in a container. Not told again:

- `test_sasl_plaintext_gssapi`, `test_admin_client_sasl_plaintext_gssapi`: Kerberos is not served.
- `test_sasl_unknown_topic_describe`: of Kafka before 1.0.
- Those of handshakes in `tests/test_conn.py`: they talk to objects that stand for a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.helpers import create_ssl_context

from tests.support.security.doors import KEY_PASSWORD, USER, Doors, doors

pytestmark = [pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors(tmp_path_factory.mktemp("aiokafka")) as found:
        yield found


@dataclass
class Scene:
    """A user's clients, by one mechanism on one listener; they are stopped, and its ACLs deleted, at the end."""

    place: Doors
    name: str
    stack: contextlib.AsyncExitStack
    listener: str = "LOGIN"
    mechanism: str = "PLAIN"

    @property
    def topic(self) -> str:
        return f"{self.name}-{self.listener}-{self.mechanism}"

    @property
    def group(self) -> str:
        return f"{self.topic}_group"

    @property
    def transactional_id(self) -> str:
        return f"{self.topic}-id"

    @property
    def _login(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": [self.place.addresses[self.listener]],
            "security_protocol": "SASL_PLAINTEXT" if self.listener == "CLEAR" else "SASL_SSL",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": USER,
        }
        return (
            found
            if self.listener == "CLEAR"
            else found | {"ssl_context": create_ssl_context(cafile=str(self.place.ca_file))}
        )

    async def producer(self, **more: Any) -> AIOKafkaProducer:
        made = AIOKafkaProducer(**self._login, **more)
        self.stack.push_async_callback(made.stop)
        await made.start()
        return made

    async def consumer(self, **more: Any) -> AIOKafkaConsumer:
        own = {"auto_offset_reset": "earliest", "group_id": self.group, **self._login, **more}
        made = AIOKafkaConsumer(self.topic, **own)
        self.stack.push_async_callback(made.stop)
        await made.start()
        return made

    async def admin(self) -> AIOKafkaAdminClient:
        made = AIOKafkaAdminClient(**self._login)
        self.stack.push_async_callback(made.close)
        await made.start()
        return made

    def _acl(self, permission: str, operation: str, resource: tuple[str, ...]) -> None:
        words = (f"--{permission}-principal", f"User:{USER}", "--operation", operation, *resource)
        self.place.run("acl", "add", *words)
        self.stack.callback(self.place.run, "acl", "delete", *words, "--yes")

    def allow(self, operation: str, *resource: str) -> None:
        self._acl("allow", operation, resource)

    def deny(self, operation: str, *resource: str) -> None:
        self._acl("deny", operation, resource)

    def all_but(self, operation: str, *resource: str) -> None:
        self.allow("All", *resource)
        self.deny(operation, *resource)


Play = Callable[[Scene], Coroutine[Any, Any, None]]


def played(play: Play, place: Doors, **how: str) -> None:
    """In real time: the broker is a process."""

    async def run() -> None:
        async with asyncio.timeout(90), contextlib.AsyncExitStack() as stack:
            await play(Scene(place, play.__name__.removeprefix("test_"), stack, **how))

    asyncio.run(run())


def scenario(play: Play) -> Callable[[Doors], None]:
    def test(place: Doors) -> None:
        played(play, place)

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    return test


async def sasl_plaintext(scene: Scene) -> None:
    """`test_sasl_plaintext_basic` and `test_sasl_plaintext_scram`."""
    producer = await scene.producer()
    await producer.send_and_wait(scene.topic, b"Super sasl msg")
    assert (await (await scene.consumer()).getone()).value == b"Super sasl msg"


async def admin_client_sasl_plaintext(scene: Scene) -> None:
    """`test_admin_client_sasl_plaintext_basic` and `test_admin_client_sasl_plaintext_scrum`."""
    cluster = await (await scene.admin()).describe_cluster()
    assert len(cluster["brokers"]) == 1


@pytest.mark.parametrize("listener", ["LOGIN", "CLEAR"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("play", [sasl_plaintext, admin_client_sasl_plaintext], ids=lambda play: play.__name__)
def test_basic(place: Doors, play: Play, mechanism: str, listener: str) -> None:
    played(play, place, mechanism=mechanism, listener=listener)


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_sasl_deny_topic_describe(scene: Scene) -> None:
    await (await scene.producer()).send_and_wait(scene.topic, b"Autocreate topic")
    scene.all_but("Describe", "--topic", scene.topic)
    producer = await scene.producer(request_timeout_ms=10_000)
    with pytest.raises(TopicAuthorizationFailedError):
        await producer.send_and_wait(scene.topic, b"Super sasl msg")
    with pytest.raises(TopicAuthorizationFailedError):
        await scene.consumer()


@scenario
async def test_sasl_deny_topic_read(scene: Scene) -> None:
    scene.all_but("Read", "--topic", scene.topic)
    await (await scene.producer()).send_and_wait(scene.topic, b"Super sasl msg")
    consumer = await scene.consumer()
    with pytest.raises(TopicAuthorizationFailedError):
        await consumer.getone()


@scenario
async def test_sasl_deny_topic_write(scene: Scene) -> None:
    scene.all_but("Write", "--topic", scene.topic)
    producer = await scene.producer()
    with pytest.raises(TopicAuthorizationFailedError):
        await producer.send_and_wait(scene.topic, b"Super sasl msg")


@scenario
async def test_sasl_deny_autocreate_cluster(scene: Scene) -> None:
    scene.deny("Create", "--cluster")
    scene.allow("Describe", "--topic", scene.topic)
    scene.allow("Write", "--topic", scene.topic)
    producer = await scene.producer(request_timeout_ms=5_000)
    with pytest.raises(TopicAuthorizationFailedError):
        await producer.send_and_wait(scene.topic, b"Super sasl msg")
    with pytest.raises(TopicAuthorizationFailedError):
        await scene.consumer(request_timeout_ms=5_000)
    with pytest.raises(TopicAuthorizationFailedError):
        await scene.consumer(request_timeout_ms=5_000, group_id=None)


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def refused_to_join(scene: Scene) -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        await (await scene.consumer()).getone()


@scenario
async def test_sasl_deny_group_describe(scene: Scene) -> None:
    scene.all_but("Describe", "--group", scene.group)
    await refused_to_join(scene)


@scenario
async def test_sasl_deny_group_read(scene: Scene) -> None:
    scene.all_but("Read", "--group", scene.group)
    await refused_to_join(scene)


@scenario
async def test_sasl_deny_transaction_group_describe(scene: Scene) -> None:
    scene.all_but("Describe", "--group", scene.group)
    producer = await scene.producer(transactional_id=scene.transactional_id)
    with pytest.raises(GroupAuthorizationFailedError):
        async with producer.transaction():
            await producer.send_offsets_to_transaction({TopicPartition(scene.topic, 0): 0}, scene.group)


@scenario
async def test_sasl_deny_transaction_group_read(scene: Scene) -> None:
    """The producer goes on after an abort."""
    scene.all_but("Read", "--group", scene.group)
    producer = await scene.producer(transactional_id=scene.transactional_id)
    await producer.begin_transaction()
    with pytest.raises(GroupAuthorizationFailedError):
        await producer.send_offsets_to_transaction({TopicPartition(scene.topic, 0): 0}, scene.group)
    with pytest.raises(GroupAuthorizationFailedError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send_and_wait(scene.topic, b"TTTT")


# ── transactional ids ────────────────────────────────────────────────────────────────────────────────────────────────


async def refused_as_transactional(scene: Scene) -> None:
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await scene.producer(transactional_id=scene.transactional_id)


@scenario
async def test_sasl_deny_txnid_describe(scene: Scene) -> None:
    scene.all_but("Describe", "--transactional-id", scene.transactional_id)
    await refused_as_transactional(scene)


@scenario
async def test_sasl_deny_txnid_write(scene: Scene) -> None:
    scene.all_but("Write", "--transactional-id", scene.transactional_id)
    await refused_as_transactional(scene)


@scenario
async def test_sasl_deny_txnid_during_transaction(scene: Scene) -> None:
    scene.allow("All", "--transactional-id", scene.transactional_id)
    producer = await scene.producer(transactional_id=scene.transactional_id)
    await producer.begin_transaction()
    await producer.send_and_wait(scene.topic, b"123", partition=0)
    scene.deny("Write", "--transactional-id", scene.transactional_id)
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await producer.send_and_wait(scene.topic, b"123", partition=1)


# ── certificates ─────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_ssl_consume(scene: Scene) -> None:
    """Produced with a password, consumed with a certificate whose key has a password."""
    producer = await scene.producer()
    for number in (1, 2, 3):
        await producer.send_and_wait(scene.topic, b"%d" % number, partition=0)
    place = scene.place
    context = create_ssl_context(
        cafile=str(place.ca_file),
        certfile=str(place.certificate_file),
        keyfile=str(place.key_file),
        password=KEY_PASSWORD,
    )
    consumer = AIOKafkaConsumer(
        scene.topic,
        group_id=scene.group,
        bootstrap_servers=[place.addresses["TLS"]],
        auto_offset_reset="earliest",
        security_protocol="SSL",
        ssl_context=context,
    )
    scene.stack.push_async_callback(consumer.stop)
    await consumer.start()
    assert [(await consumer.getone()).value for _ in range(3)] == [b"1", b"2", b"3"]


def test_create_ssl_context(place: Doors) -> None:
    """Of an authority in a file, as text and as DER: its hosts' names are checked."""
    ca_file = place.ca_file
    from_file = create_ssl_context(cafile=str(ca_file))
    (der,) = from_file.get_ca_certs(binary_form=True)
    contexts = (create_ssl_context(), from_file, create_ssl_context(cadata=ca_file.read_text("ascii")))
    for context in (*contexts, create_ssl_context(cadata=der)):
        assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
        assert context is contexts[0] or context.get_ca_certs(binary_form=True) == [der]
