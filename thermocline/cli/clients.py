"""The stock client behind `topic`, `produce` and `consume`: confluent-kafka, and its errors in plain words.

Owns how these commands connect and what a failure is called. Always true: librdkafka's own log never reaches a person;
what it says is turned into what happened, to what, and what to do. Must not know what the commands do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public in its docs, not re-exported for mypy
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from thermocline.cli.bootstrap import bootstrap_addresses
from thermocline.cli.outcome import CommandFailed, Exit

__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "ResourceType",
]

REQUEST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0

ClientConfig = dict[str, Any]  # librdkafka's own configuration: strings, numbers, callables

_ADVICE: dict[int, str] = {
    KafkaError.TOPIC_ALREADY_EXISTS: "pick another name, or look at it with `thermocline topic describe`",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "see `thermocline topic list`, or create it with `thermocline topic create`",
    KafkaError._UNKNOWN_TOPIC: "see `thermocline topic list`, or create it with `thermocline topic create`",
    KafkaError.INVALID_REPLICATION_FACTOR: "one broker can keep one replica: -r 1",
    KafkaError._ALL_BROKERS_DOWN: "is the broker running, and is -b its address?",
    KafkaError._TRANSPORT: "is the broker running, and is -b its address?",
    KafkaError._TIMED_OUT: "is the broker running and ready (GET /readyz), and is -b its address?",
    KafkaError._MSG_TIMED_OUT: "is the broker running and ready (GET /readyz), and is -b its address?",
    KafkaError.TOPIC_EXCEPTION: "a name is 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor ..",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records",
}


def client_config(bootstrap: str, extra: list[tuple[str, str]] | None = None) -> ClientConfig:
    """What every client of ours starts from; `extra` are `-X` pairs, which win."""
    quiet = logging.getLogger("thermocline.librdkafka")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    config: ClientConfig = {"bootstrap.servers": bootstrap, "client.id": "thermocline-cli", "logger": quiet}
    return config | dict(extra or [])


def plainly(what: str, error: KafkaError) -> str:
    """One line: what was done, what went wrong, and what to do about it."""
    advice = _ADVICE.get(error.code())
    if error.code() == KafkaError.TOPIC_EXCEPTION and not error.str().startswith("Broker:"):
        advice = None  # the broker's own words: they may be about two names, not about letters
    return f"{what}: {error.str()}" + (f"; {advice}" if advice else "")


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn the client's exceptions into CommandFailed; `what` says what was being done.

    For calls of the client only: it raises Python's own errors too, for what no request can carry, before it is sent.
    """
    try:
        yield
    except KafkaException as failed:
        raise CommandFailed(plainly(what, failed.args[0])) from failed
    except (ValueError, OverflowError) as refused:
        raise CommandFailed(f"{what}: {refused}", Exit.USAGE) from refused


def connected_admin(bootstrap: str) -> AdminClient:
    """An admin client whose broker answers. CommandFailed when none does within 10 s."""
    admin = AdminClient(client_config(bootstrap))
    require_broker(admin, bootstrap)
    return admin


def require_broker(client: Any, bootstrap: str) -> None:
    """CommandFailed when no broker answers within 10 s; at once when the address refuses connections."""
    _refused_at_once(bootstrap)
    with failing(f"no broker answers at {bootstrap}"):
        client.list_topics(timeout=_CONNECT_TIMEOUT_S)


def require_name(client: Any, topic: str) -> None:
    """CommandFailed when the broker refuses the topic's name: librdkafka would wait for such a topic in silence."""
    with failing(f"topic {topic}"):
        found = client.list_topics(topic, timeout=_CONNECT_TIMEOUT_S).topics.get(topic)
    if found is not None and found.error is not None and found.error.code() == KafkaError.TOPIC_EXCEPTION:
        raise CommandFailed(plainly(f"topic {topic}", found.error))


def _refused_at_once(bootstrap: str) -> None:
    """librdkafka keeps trying a closed port until its timeout; a person wants to know now."""
    import socket

    last: OSError | None = None
    for address in bootstrap_addresses(bootstrap):
        try:
            socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
            return
        except OSError as refused:
            last = refused
    raise CommandFailed(f"no broker answers at {bootstrap}: {last}; {_ADVICE[KafkaError._TRANSPORT]}")


def settled(futures: dict[str, Any], what: Callable[[str], str]) -> None:
    """Wait for an admin call on each name. CommandFailed for the first that failed."""
    for name, future in futures.items():
        with failing(what(name)):
            future.result()
