"""Which broker is asked, and where: the first that answers of the addresses typed, and each one's HTTP port.

Owns how an HTTP port is found (the broker names it as a config) and how its answers are read. Always true: a broker
that is not ours, or whose port cannot be reached, costs an answer, never the command. Must not know what is asked.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from broker.config.addresses import parse_address
from broker.config.values import InvalidConfig
from seams.typed_json import decoder_of
from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.http_client import HttpRefused, get
from thermocline.cli.clients.wire_client import BROKER_RESOURCE, TIMEOUT_S, BrokerUnreachable, WireClient
from thermocline.cli.terminal.outcome import CommandFailed

T = TypeVar("T")

_HTTP = "thermocline.http"


def connect(bootstrap: str, timeout_s: float = TIMEOUT_S) -> WireClient:
    """A connection to the first bootstrap address that answers."""
    failure: BrokerUnreachable | None = None
    for host, port in bootstrap_addresses(bootstrap):
        try:
            return WireClient(host, port, timeout_s)
        except BrokerUnreachable as refused:
            failure = failure or refused
    assert failure is not None
    raise failure


def http_addresses(bootstrap: str) -> dict[int, tuple[str, int]]:
    """Where each broker's HTTP port is, as it says itself, by its number. CommandFailed when one names none;
    BrokerUnreachable when one that has a session does not answer."""
    found = {}
    with connect(bootstrap) as client:
        brokers = client.metadata([]).brokers
        for broker in brokers:  # the one that was asked answers for itself, by the address that was typed
            if (address := http_of(client, broker.node_id)) is not None:
                found[broker.node_id] = address
    for broker in brokers if len(brokers) > 1 else ():
        if broker.node_id not in found:
            with WireClient(broker.host, broker.port) as client:
                if (address := http_of(client, broker.node_id)) is not None:
                    found[broker.node_id] = address
    silent = [str(broker.node_id) for broker in brokers if broker.node_id not in found]
    if len(brokers) == 1 and silent:
        raise CommandFailed(f"the broker at {bootstrap} names no HTTP port (not Thermocline, or --no-http)")
    if silent:
        raise CommandFailed(f"broker {', '.join(silent)} of {bootstrap} names no HTTP port (--no-http)")
    return dict(sorted(found.items()))


def http_of(client: WireClient, node_id: int) -> tuple[str, int] | None:
    value = client.configs(BROKER_RESOURCE, str(node_id), [_HTTP]).get(_HTTP)
    try:
        address = parse_address(value or "", _HTTP)
    except InvalidConfig:
        return None  # another broker's, or none
    return (client.host if address.every_interface else address.host), address.port


def said(address: tuple[str, int], path: str, kind: type[T], timeout_s: float = 5.0) -> T | None:
    """What the broker's HTTP port says; None where it says nothing that can be read."""
    try:
        return decoder_of(kind).decode(get(*address, path, timeout_s))
    except (HttpRefused, msgspec.MsgspecError):
        return None
