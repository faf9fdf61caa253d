"""Connects to the first bootstrap address that answers, and finds and queries brokers' HTTP ports.

A broker names its HTTP port in a config. If a broker is not ours, or its port cannot be reached, its response is
missing but the command continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from broker.config.network.addresses import parse_address
from broker.config.values import InvalidConfig
from seams.typed_json import decoder_of
from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.client_properties import HTTP_TOKEN
from thermocline.cli.clients.http_client import HttpAddress, HttpRefused, TokenRefused, get
from thermocline.cli.clients.wire_client import BROKER_RESOURCE, TIMEOUT_S, BrokerUnreachable, WireClient
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.cli.terminal.output import note

T = TypeVar("T")

_HTTP = "thermocline.http"
_HTTP_TLS = "thermocline.http.ssl.keystore.location"
NEEDS_DESCRIBE_CONFIGS = (
    "that needs DescribeConfigs on the cluster (`thermocline acl add --allow-principal User:NAME --operation "
    "DescribeConfigs --cluster`)"
)


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


def http_addresses(bootstrap: str) -> dict[int, HttpAddress]:
    """Each broker's HTTP address by node id. Raises CommandFailed when a broker has none, BrokerUnreachable when a
    broker with a session does not answer.
    """
    found = {}
    with connect(bootstrap) as client:
        brokers = client.metadata([]).brokers
        for broker in brokers:  # the connected broker answers for itself
            if (address := http_of(client, broker.node_id)) is not None:
                found[broker.node_id] = address
        if not found and not all(client.may_read_configs(broker.node_id) for broker in brokers[:1]):
            raise CommandFailed(f"{client.host} does not say where its HTTP port is: {NEEDS_DESCRIBE_CONFIGS}")
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


def http_of(client: WireClient, node_id: int) -> HttpAddress | None:
    values = client.configs(BROKER_RESOURCE, str(node_id), [_HTTP, _HTTP_TLS])
    try:
        address = parse_address(values.get(_HTTP) or "", _HTTP)
    except InvalidConfig:
        return None  # the port is another broker's, or nothing answers
    host = client.host if address.every_interface else address.host
    return HttpAddress(host, address.port, bool(values.get(_HTTP_TLS)))


def get_json(address: HttpAddress, path: str, kind: type[T], timeout_s: float = 5.0) -> T | None:
    """The parsed JSON of a broker's HTTP response; None if there is no readable one."""
    return ask_json(address, path, kind, timeout_s)[0]


def ask_json(address: HttpAddress, path: str, kind: type[T], timeout_s: float = 5.0) -> tuple[T | None, bool]:
    """As `get_json`, and whether the port refused the token."""
    try:
        return decoder_of(kind).decode(get(address, path, timeout_s)), False
    except TokenRefused:
        return None, True
    except (HttpRefused, msgspec.MsgspecError):
        return None, False


def token_refused(what: str, nodes: Iterable[int]) -> str:
    """The sentence that `what` is not known of these brokers, because their HTTP ports refused the token."""
    named = sorted(nodes)
    brokers, ports = ("broker", "its HTTP port") if len(named) == 1 else ("brokers", "their HTTP ports")
    return (
        f"{what} of {brokers} {', '.join(map(str, named))} are not known: {ports} refused the token "
        f"(`{HTTP_TOKEN}` of --command-config)"
    )


def note_token_refused(what: str, nodes: Iterable[int]) -> None:
    """The same on stderr, if there are such brokers: a `-` or null alone looks like a value."""
    if refused := list(nodes):
        note(f"note: {token_refused(what, refused)}")
