"""confluent-kafka behind `topic`, `produce`, `consume` and `group`, with its errors in plain words.

librdkafka's own log is never printed; its errors are rewritten with the failure, its object and the remedy.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public in its docs, not re-exported for mypy
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from broker.config.network.sasl import TokenLogin
from logformat.values import is_topic_name
from thermocline.cli.clients.advice import running_advice
from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.connection_properties import current
from thermocline.cli.clients.librdkafka_names import nearest
from thermocline.cli.terminal.outcome import CommandFailed, Exit

__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "ResourceType",
    "TopicMetadata",
]

REQUEST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_CREATE_TIMEOUT_S = 10.0
_CREATE_POLL_S = 0.1
_TOKEN_FILE_S = 300.0  # a token's file is read again after this time
_AUTO_CREATE = "auto.create.topics.enable"

_LATE = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
_NO_SUCH_CONFIG = re.compile(r'No such configuration property: "(.*)"')
_SECRET = re.compile("password|secret|key|token|conf", re.I)  # values that are not printed

_NO_ANSWER = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
_NO_ANSWER_IN_TIME = (KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT)

C = TypeVar("C")
ClientConfig = dict[str, Any]  # librdkafka's own configuration: strings, numbers, callables

_ADVICE: dict[int, str] = {
    KafkaError.TOPIC_ALREADY_EXISTS: "pick another name, or look at it with `thermocline topic describe`",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "see `thermocline topic list`, or create it with `thermocline topic create`",
    KafkaError._UNKNOWN_TOPIC: "see `thermocline topic list`, or create it with `thermocline topic create`",
    KafkaError.INVALID_REPLICATION_FACTOR: "-r is at most the number of brokers: see `thermocline cluster status`",
    KafkaError.TOPIC_EXCEPTION: "a name is 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor ..",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "this needs Read on the group: `thermocline acl add --allow-principal "
    "User:NAME --operation Read --group GROUP`, or -g with one that you may read",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "see `thermocline acl list --topic TOPIC --matching`, as a super user",
    KafkaError.NON_EMPTY_GROUP: "stop its members first; see `thermocline group describe`",
    KafkaError.GROUP_ID_NOT_FOUND: "see `thermocline group list`",
    KafkaError.INVALID_RECORD: "a compacted topic needs a key (-k, -K); else see the broker's log",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records "
    "(or smaller batches: -X batch.size=N)",
}


def client_config(bootstrap: str) -> ClientConfig:
    quiet = logging.getLogger("thermocline.librdkafka")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    config: ClientConfig = {"bootstrap.servers": bootstrap, "client.id": "thermocline-cli", "logger": quiet}
    properties = current()
    if isinstance(properties.login, TokenLogin) and properties.login.token_file:
        config["oauth_cb"] = partial(_token, properties.login.token_file)
    return config


def _token(path: str, _: str) -> tuple[str, float]:
    """The token of a file. librdkafka asks for it again after its expiry."""
    with open(path, encoding="ascii") as file:
        return file.read().strip(), time.time() + _TOKEN_FILE_S


def make_client(
    kind: Callable[[ClientConfig], C],
    bootstrap: str,
    defaults: ClientConfig,
    extra: list[tuple[str, str]],
    decided: Mapping[str, str],
) -> C:
    """A client. This command's client configuration wins over `defaults`; `extra` are the `-X` pairs in it.
    Raises CommandFailed (usage) for an unknown name (the message has the nearest one), for a refused value, and for a
    config that a flag sets.
    """
    for name, _ in extra:
        if why := decided.get(name):
            raise CommandFailed(f"-X {name}: {why}", Exit.USAGE)
    try:
        return kind(client_config(bootstrap) | defaults | dict(current().librdkafka))
    except KafkaException as refused:
        raise CommandFailed(_refused_config(refused.args[0], extra), Exit.USAGE) from refused
    except (TypeError, ValueError) as refused:  # configs whose values are functions and objects
        raise CommandFailed(f"-X {_shown(extra)}: {refused}; a command line cannot set it", Exit.USAGE) from refused


def _refused_config(error: KafkaError, extra: list[tuple[str, str]]) -> str:
    unknown = _NO_SUCH_CONFIG.search(error.str())
    if unknown is None:
        return f"-X {_shown(extra)}: {error.str()}"
    near = nearest(unknown[1])
    return f"-X {unknown[1]}: librdkafka has no such config" + (f"; the nearest is {near}" if near else "")


def _shown(extra: list[tuple[str, str]]) -> str:
    return " -X ".join(name if _SECRET.search(name) else f"{name}={value}" for name, value in extra)


def plainly(what: str, error: KafkaError) -> str:
    """An error as one line: the operation, the error, and the remedy."""
    advice = _ADVICE.get(error.code())
    if error.code() in (*_NO_ANSWER, *_NO_ANSWER_IN_TIME):
        advice = running_advice(current().bootstrap_file, is_ready=error.code() in _NO_ANSWER_IN_TIME)
    if error.code() == KafkaError.TOPIC_EXCEPTION and not error.str().startswith("Broker:"):
        advice = None  # the broker's own message may have another subject
    return f"{what}: {error.str().rstrip('.')}; {advice}" if advice else f"{what}: {error.str()}"


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn the client's exceptions into CommandFailed. `what` names the operation.

    For client calls only, because it also turns ValueError and OverflowError, which the client raises for values that
    no request can carry.
    """
    try:
        yield
    except KafkaException as failed:
        code = Exit.USAGE if failed.args[0].code() == KafkaError.INVALID_CONFIG else Exit.FAILED
        raise CommandFailed(plainly(what, failed.args[0]), code) from failed
    except (ValueError, OverflowError) as refused:
        raise CommandFailed(f"{what}: {refused}", Exit.USAGE) from refused


def connected_admin(bootstrap: str) -> AdminClient:
    """An admin client whose broker answers. Raises CommandFailed when no broker answers within 10 s."""
    admin = make_client(AdminClient, bootstrap, {}, [], {})
    require_broker(admin, bootstrap)
    return admin


def require_broker(client: Any, bootstrap: str) -> ClusterMetadata:
    """The cluster's metadata. Raises CommandFailed when no broker answers within 10 s, or at once when the address
    refuses the connection."""
    _refused_at_once(bootstrap)
    try:
        with failing(f"no broker answers at {bootstrap}"):
            found: ClusterMetadata = client.list_topics(timeout=_CONNECT_TIMEOUT_S)
    except CommandFailed as failed:
        if refusal := security_refusal(bootstrap):
            raise CommandFailed(refusal) from failed
        raise
    return found


def security_refusal(bootstrap: str) -> str | None:
    """The reason why TLS or the login of this command fails; None if they do not, or if that is unknown. librdkafka
    retries in silence, and then says that no broker answered.
    """
    from thermocline.cli.clients.connections import connect
    from thermocline.cli.clients.wire_client import BrokerUnreachable, NotSecured

    try:
        with connect(bootstrap) as client:
            client.metadata([])  # a broker answers ApiVersions before the login
            return None
    except NotSecured as refused:
        return str(refused)
    except (BrokerUnreachable, CommandFailed):
        return None


def created_topic(client: Any, bootstrap: str, topic: str) -> TopicMetadata:
    """A topic that the broker creates on a producer's request. Raises CommandFailed when the broker refuses the name or
    creates no topic, because librdkafka would wait for the topic silently.
    """
    deadline = time.monotonic() + _CREATE_TIMEOUT_S
    while True:
        with failing(f"topic {topic}"):
            found: TopicMetadata = client.list_topics(topic, timeout=_CONNECT_TIMEOUT_S).topics[topic]
        if found.error is None and found.partitions:
            return found
        error = found.error
        if error is not None and error.code() not in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.LEADER_NOT_AVAILABLE,
        ):
            raise CommandFailed(f"topic {topic}: {refused_topic(topic, error)}")
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and not _creates_topics(bootstrap):
            raise CommandFailed(
                f"there is no topic {topic}, and the broker creates none by itself (auto.create.topics.enable=false); "
                f"create it with `thermocline topic create {topic}`"
            )
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"there is no topic {topic}, and the broker did not create it in {_CREATE_TIMEOUT_S:.0f} s; see its log"
            )
        time.sleep(_CREATE_POLL_S)


def refused_topic(topic: str, error: KafkaError) -> str:
    """The reason why a producer may not write to this topic. Kafka reports an internal topic as an invalid name."""
    if error.code() == KafkaError.TOPIC_EXCEPTION and is_topic_name(topic):
        return "it is internal: the broker alone creates it and writes to it"
    return plainly("", error).removeprefix(": ")


def _creates_topics(bootstrap: str) -> bool:
    from thermocline.cli.clients.connections import connect
    from thermocline.cli.clients.wire_client import BROKER_RESOURCE, BrokerUnreachable

    try:
        with connect(bootstrap) as client:
            answer = client.metadata([])
            configs = client.configs(BROKER_RESOURCE, str(answer.brokers[0].node_id), [_AUTO_CREATE])
    except BrokerUnreachable:
        return True  # the broker may require TLS or a password, which only the stock client has
    return configs.get(_AUTO_CREATE) != "false"


def _refused_at_once(bootstrap: str) -> None:
    """Fail at once for a closed port; librdkafka would retry until its timeout."""
    import socket

    last: OSError | None = None
    for address in bootstrap_addresses(bootstrap):
        try:
            socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
            return
        except OSError as refused:
            last = refused
    raise CommandFailed(f"no broker answers at {bootstrap}: {last}; {running_advice(current().bootstrap_file)}")


def settled(futures: dict[str, Any], what: Callable[[str], str]) -> None:
    """Wait for the change of each name. Raises CommandFailed for the first change that failed or timed out. A broker
    may still apply a change that timed out.
    """
    for name, future in futures.items():
        try:
            with failing(what(name)):
                future.result()
        except CommandFailed as failed:
            cause = failed.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() in _LATE:
                raise CommandFailed(
                    f"{what(name)}: no answer within {REQUEST_TIMEOUT_S:.0f} s; the broker may still be working on "
                    f"it: see "
                    "`thermocline topic list` before you try again"
                ) from failed
            raise
