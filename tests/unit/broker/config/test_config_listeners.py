"""Listeners and what they tell clients: which are accepted, and what is said of the others."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.network.listeners import ListenerConfig
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.config.sources import ConfigError

MAP = (
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT,S:SSL,CONTROLLER:PLAINTEXT"
)
TWO = "listeners=PLAINTEXT://127.0.0.1:9092,A://127.0.0.1:9093"


def config(*lines: str, launch: Launch = Launch(), **flags: str) -> BrokerConfig:  # noqa: B008 - immutable
    text = "\n".join(["log.dirs=/d", *lines])
    return resolve({name.replace("_", "."): value for name, value in flags.items()}, [], {}, text, launch)


def refusal(*lines: str) -> str:
    with pytest.raises(ConfigError) as refused:
        config(*lines)
    return str(refused.value)


def test_several_listeners_each_with_its_address_in_the_order_written() -> None:
    """Names in capitals; controllers' listeners are left out of both lists."""
    found = config(
        MAP,
        "controller.listener.names=CONTROLLER",
        "listeners=b://127.0.0.1:0,CONTROLLER://127.0.0.1:9094,A://[::1]:9093",
        "advertised.listeners=A://a.example:19093,B://b.example:0,CONTROLLER://c:1",
        "inter.broker.listener.name=a",
    )
    assert found.listeners == (
        ListenerConfig("B", "127.0.0.1", 0, "b.example", None),
        ListenerConfig("A", "::1", 9093, "a.example", 19093),
    )
    assert found.brokers_listener == "A"
    assert found.ignored == ()


def test_a_listener_that_advertises_nothing_tells_where_it_listens() -> None:
    """The machine's name where every interface is listened on; no port where one is picked."""
    every = Launch(insecure=True, host_name="box")
    assert config("listeners=:9092", launch=every).listeners == (ListenerConfig("PLAINTEXT", "", 9092, "box", 9092),)
    found = config(MAP, "listeners=PLAINTEXT://127.0.0.1:0,A://0.0.0.0:9093", launch=every).listeners
    assert [(one.advertised_host, one.advertised_port) for one in found] == [("127.0.0.1", None), ("box", 9093)]


def test_one_listener_needs_no_name_where_it_advertises() -> None:
    """`--listen HOST:PORT --advertise HOST:PORT`, as ever."""
    found = config("listeners=127.0.0.1:9092", advertised_listeners="kafka.example:19092").listeners
    assert found == (ListenerConfig("PLAINTEXT", "127.0.0.1", 9092, "kafka.example", 19092),)
    (one,) = config(MAP, "listeners=A://127.0.0.1:9092", "advertised.listeners=kafka.example:19092").listeners
    assert (one.name, one.advertised_host) == ("A", "kafka.example")


def test_which_listener_brokers_use() -> None:
    """The one named, when clients have another; else one more that is theirs alone, on loopback.

    Until 2026-11-23 it was the only one, or PLAINTEXT, which clients use too: nobody could ask there what only brokers
    may, or any client could (R5).
    """
    picked = ListenerConfig("BROKERS", "127.0.0.1", 0, "127.0.0.1", None)
    for lines in ([], [TWO], [ONE, "inter.broker.listener.name=PLAINTEXT"], ["listeners=A://127.0.0.1:1,B://[::1]:2"]):
        found = config(MAP, *lines)
        assert (found.brokers_listener, found.internal) == ("BROKERS", picked), lines
        assert picked not in found.listeners
    found = config(MAP, TWO, "inter.broker.listener.name=A")
    assert (found.brokers_listener, found.internal) == ("A", None)


def test_where_brokers_reach_a_broker_can_be_said() -> None:
    """By the flag or the file; what other machines reach needs the operator's word, as for clients."""
    found = config("thermocline.internal=[::1]:9093")
    assert found.internal == ListenerConfig("BROKERS", "::1", 9093, "::1", 9093)
    with pytest.raises(ConfigError, match=r"thermocline.internal: 10.0.0.5 can be reached by other machines"):
        config("thermocline.internal=10.0.0.5:9093")
    reached = Launch(insecure=True, host_name="box")
    assert config("thermocline.internal=10.0.0.5:9093", launch=reached).internal is not None
    every = config("thermocline.internal=:9093", launch=reached).internal
    assert every is not None and (every.host, every.advertised_host) == ("", "box")


ONE = "listeners=PLAINTEXT://127.0.0.1:9092"

KAFKAS: list[tuple[list[str], str]] = [
    ([MAP, "listeners="], "Configuration 'listeners' must not be empty. Valid values include: any non-empty value"),
    (
        [MAP, "listeners=A://127.0.0.1:9092,A://127.0.0.1:9093"],
        "Each listener must have a different name, listeners: [A://127.0.0.1:9092, A://127.0.0.1:9093]",
    ),
    ([MAP, "listeners=A://127.0.0.1:9092,a://[::1]:9092"], "Each listener must have a different name, listeners: "),
    (
        [MAP, "listeners=A://127.0.0.1:9092,B://127.0.0.2:9092"],
        "If you have two listeners on the same port then one needs to be IPv4 and the other IPv6, "
        "listeners: [A://127.0.0.1:9092, B://127.0.0.2:9092], port: 9092",
    ),
    (
        [MAP, "listeners=A://127.0.0.1:9092,B://[::1]:9092,C://127.0.0.1:9092"],
        "Each listener must have a different port unless exactly one listener has an IPv4 address and the other "
        "IPv6 address, listeners: [A://127.0.0.1:9092, B://[::1]:9092, C://127.0.0.1:9092], port: 9092",
    ),
    (
        [MAP, "listeners=A://127.0.0.1:9092,B://localhost:9092"],
        "Each listener must have a different port unless exactly one listener has an IPv4 address",
    ),
    (
        [MAP, "listeners=A://localhost:9092,B://localhost:9092"],
        "Each listener must have a different port, listeners: [A://localhost:9092, B://localhost:9092]",
    ),
    ([MAP, "listeners=X://127.0.0.1:9092"], "No security protocol defined for listener X"),
    (["listener.security.protocol.map=", ONE], "No security protocol defined for listener PLAINTEXT"),
    (
        ["listener.security.protocol.map=A:FOO,CONTROLLER:PLAINTEXT", "listeners=A://127.0.0.1:9092"],
        "Invalid security protocol `FOO` defined in listener.security.protocol.map",
    ),
    (
        [MAP, TWO, "advertised.listeners=PLAINTEXT://a:1,A://b:2,B://c:3"],
        "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. "
        "Found PLAINTEXT,A,B. The valid options based on the current configuration are PLAINTEXT,A",
    ),
    (
        [MAP, TWO, "advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2"],
        "Each listener must have a different name, listeners: [PLAINTEXT://a:1, PLAINTEXT://b:2]",
    ),
    (
        [MAP, TWO, "advertised.listeners=PLAINTEXT://a:1,A://0.0.0.0:2"],
        "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address",
    ),
    (
        [MAP, TWO, "inter.broker.listener.name=B"],
        "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options "
        "based on currently configured listeners are PLAINTEXT,A",
    ),
    (
        [MAP, TWO, "inter.broker.listener.name=CONTROLLER"],
        "inter.broker.listener.name must be a listener name defined in advertised.listeners",
    ),
    (
        [MAP, TWO, "inter.broker.listener.name=X"],
        "Listener with name X defined in inter.broker.listener.name not found in listener.security.protocol.map.",
    ),
    (
        [MAP, TWO, "inter.broker.listener.name=A", "security.inter.broker.protocol=PLAINTEXT"],
        "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
    ),
]
"""What Kafka refuses too, in its words (test_config_kafka_peer asks it)."""

OURS: list[tuple[list[str], str]] = [
    (
        [MAP, "controller.listener.names=CONTROLLER", "listeners=CONTROLLER://127.0.0.1:9092"],
        "perhaps all listeners appear in controller.listener.names?",
    ),
    (
        [MAP, TWO, "inter.broker.listener.name=A", "thermocline.internal=127.0.0.1:9094"],
        "thermocline.internal=127.0.0.1:9094 and inter.broker.listener.name=A both name the address",
    ),
    (
        ["listener.security.protocol.map=BROKERS:PLAINTEXT", "listeners=BROKERS://127.0.0.1:9092"],
        "listener BROKERS has the name of the listener that only brokers use",
    ),
    ([MAP, "thermocline.internal=127.0.0.1:9092"], "If you have two listeners on the same port"),
    ([MAP, "thermocline.internal="], "thermocline.internal"),
    ([MAP, "listeners=A://127.0.0.1:x"], "Invalid value A://127.0.0.1:x for configuration listeners"),
    ([MAP, TWO, "advertised.listeners=PLAINTEXT://:1,A://b:2"], "cannot use the nonroutable meta-address"),
    ([MAP, TWO, "advertised.listeners=PLAINTEXT://a:1"], "advertised.listeners has no entry for listener A"),
    ([MAP, TWO, "advertised.listeners=a:1"], "advertised.listeners has no entry for listener A"),  # PLAINTEXT's
    ([MAP, TWO, "control.plane.listener.name=A"], "Kafka 4 removed it"),
    (["listener.security.protocol.map=A=PLAINTEXT", ONE], "has 'A=PLAINTEXT': write NAME:PROTOCOL"),
    (["listener.security.protocol.map=A:PLAINTEXT,a:SSL", ONE], "listener A two protocols: PLAINTEXT and SSL"),
]
"""What Kafka lets start, or ends by an exception of its own; or what is not served here."""


@pytest.mark.parametrize(("lines", "words"), [*KAFKAS, *OURS])
def test_what_is_refused_says_why(lines: list[str], words: str) -> None:
    assert words in refusal(*lines)


def test_ports_two_listeners_may_share() -> None:
    """One of IPv4 and one of IPv6, as Kafka allows; and ports that are picked."""
    assert len(config(MAP, "listeners=PLAINTEXT://127.0.0.1:9092,B://[::1]:9092").listeners) == 2
    assert len(config(MAP, "listeners=PLAINTEXT://127.0.0.1:0,B://127.0.0.1:0").listeners) == 2


def test_every_listener_is_judged_by_who_can_reach_it() -> None:
    """One of several is enough to be reached by others."""
    assert "--insecure" in refusal(MAP, "listeners=PLAINTEXT://127.0.0.1:9092,A://192.168.1.4:9093")
