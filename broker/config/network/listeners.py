"""Listener configs: bound addresses, and addresses advertised to clients and brokers.

Checks `listeners`, `advertised.listeners`, `listener.security.protocol.map`, `controller.listener.names`,
`inter.broker.listener.name` and `thermocline.internal` together, with the messages of Kafka 4.3.1. Every listener has a
unique name and port, and an address that its clients can use. Brokers have a listener that clients do not need, so that
requests of brokers never come from a client (R5, CVE-2018-1288). Listeners of controllers are left out, because there
is no controller quorum. Pure: names are not resolved, and addresses are not bound.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.config.network.addresses import Address, parse_address, show_address
from broker.config.values import InvalidConfig
from broker.security_protocol import SecurityProtocol

BROKERS: Final = "BROKERS"
"""Name of the additional listener for brokers."""


class ListenerConfig(NamedTuple):
    """One listener: its bound address, advertised address, and protocol."""

    name: str
    host: str  # empty: every interface
    port: int  # 0 picks one
    advertised_host: str
    advertised_port: int | None  # None: the port that was bound
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def address(self) -> Address:
        return Address(self.name, self.host, self.port)


class ListenerTexts(NamedTuple):
    """The listener configs as written; None for a config that was not written."""

    listeners: Sequence[str]
    advertised: Sequence[str]
    protocols: str  # listener.security.protocol.map
    controllers: Sequence[str]
    inter_broker: str | None
    inter_broker_protocol: str | None
    internal: str  # thermocline.internal
    is_internal_written: bool  # False: `internal` is the default


def read_listeners(texts: ListenerTexts, host_name: str) -> tuple[ListenerConfig, ...]:
    """The listeners of clients and brokers, in the order written. Raises InvalidConfig for listeners that cannot be
    served.

    `host_name`: advertised if every interface is bound and no address is advertised.
    """
    controllers = {name.strip().upper() for name in texts.controllers}
    if not texts.listeners:
        raise InvalidConfig("Configuration 'listeners' must not be empty. Valid values include: any non-empty value")
    every = [parse_address(text, "listeners") for text in texts.listeners]
    _check_names(every)
    _check_ports(every)
    served = [address for address in every if address.name not in controllers]
    if not served:
        raise InvalidConfig(
            f"listeners={','.join(texts.listeners)}: no listener is left for clients; "
            "perhaps all listeners appear in controller.listener.names?"
        )
    protocols = _protocols(texts.protocols)
    spoken = {address.name: _protocol(address.name, protocols) for address in served}
    told = _advertised(texts.advertised, served, controllers)
    return tuple(_joined(address, told.get(address.name), host_name, spoken[address.name]) for address in served)


class BrokersListener(NamedTuple):
    """The listener of brokers: its name, and its address if the listener is not one of `listeners`."""

    name: str
    own: ListenerConfig | None


def brokers_listener(texts: ListenerTexts, listeners: Sequence[ListenerConfig], host_name: str) -> BrokersListener:
    """The listener that inter.broker.listener.name names, if another listener remains for clients. Otherwise an
    additional listener.
    """
    named = _named_for_brokers(texts, [listener.name for listener in listeners])
    if named is None or len(listeners) == 1:
        return BrokersListener(BROKERS, _listener_of_brokers(texts, listeners, host_name))
    if texts.is_internal_written:
        raise InvalidConfig(
            f"thermocline.internal={texts.internal} and inter.broker.listener.name={named} both name the "
            "address at which other brokers reach this one: leave one of them out"
        )
    return BrokersListener(named, None)


def _listener_of_brokers(texts: ListenerTexts, listeners: Sequence[ListenerConfig], host_name: str) -> ListenerConfig:
    """The protocol of the brokers' listener: from listener.security.protocol.map, otherwise from
    security.inter.broker.protocol."""
    address = parse_address(texts.internal, "thermocline.internal")._replace(name=BROKERS)
    if any(listener.name == BROKERS for listener in listeners):
        raise InvalidConfig(
            f"listener {BROKERS} has the name of the listener that only brokers use: give it another name, or set "
            f"inter.broker.listener.name={BROKERS} and add a listener for clients"
        )
    _check_ports([*(listener.address for listener in listeners), address])
    default = SecurityProtocol((texts.inter_broker_protocol or SecurityProtocol.PLAINTEXT).strip())
    protocol = _protocol(BROKERS, {BROKERS: default} | dict(_protocols(texts.protocols)))
    return _joined(address, None, host_name, protocol)


def _named_for_brokers(texts: ListenerTexts, names: Sequence[str]) -> str | None:
    """The value of inter.broker.listener.name, checked as Kafka does."""
    if texts.inter_broker is None:
        return None
    if texts.inter_broker_protocol is not None:
        raise InvalidConfig("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
    wanted = texts.inter_broker.strip().upper()
    if wanted not in _protocols(texts.protocols):
        raise InvalidConfig(
            f"Listener with name {wanted} defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map."
        )
    if wanted not in names:
        raise InvalidConfig(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. "
            f"The valid options based on currently configured listeners are {','.join(names)}"
        )
    return wanted


def _check_names(addresses: Sequence[Address]) -> None:
    if len({address.name for address in addresses}) != len(addresses):
        raise InvalidConfig(f"Each listener must have a different name, listeners: {_shown(addresses)}")


def _check_ports(addresses: Sequence[Address]) -> None:
    """Check that each port has one listener, or one listener of IPv4 and one of IPv6."""
    by_port: dict[int, list[Address]] = {}
    for address in addresses:
        if address.port:
            by_port.setdefault(address.port, []).append(address)
    for port, sharing in by_port.items():
        if len(sharing) == 1:
            continue
        versions = [_ip_version(address.host) for address in sharing]
        if not any(versions):
            raise InvalidConfig(f"Each listener must have a different port, listeners: {_shown(addresses)}")
        if len(sharing) > 2 or not all(versions):
            raise InvalidConfig(
                "Each listener must have a different port unless exactly one listener has an IPv4 address and the "
                f"other IPv6 address, listeners: {_shown(addresses)}, port: {port}"
            )
        if sorted(versions) != [4, 6]:
            raise InvalidConfig(
                "If you have two listeners on the same port then one needs to be IPv4 and the other IPv6, "
                f"listeners: {_shown(addresses)}, port: {port}"
            )


def _ip_version(host: str) -> int:
    """4 or 6; 0 for a name, and for every interface."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _protocols(text: str) -> Mapping[str, SecurityProtocol]:
    """Listener name → protocol, of `NAME:PROTOCOL,…`."""
    found: dict[str, SecurityProtocol] = {}
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or not name:
            raise InvalidConfig(f"listener.security.protocol.map has {pair!r}: write NAME:PROTOCOL")
        if protocol not in SecurityProtocol.__members__:
            raise InvalidConfig(f"Invalid security protocol `{protocol}` defined in listener.security.protocol.map")
        if found.get(name, protocol) != protocol:
            raise InvalidConfig(
                f"listener.security.protocol.map gives listener {name} two protocols: {found[name]} and {protocol}"
            )
        found[name] = SecurityProtocol(protocol)
    return found


def _protocol(name: str, protocols: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    """The protocol of listener `name`. Raises InvalidConfig when none is given."""
    protocol = protocols.get(name)
    if protocol is None:
        raise InvalidConfig(
            f"No security protocol defined for listener {name}: add {name}:PLAINTEXT to listener.security.protocol.map"
        )
    return protocol


def _advertised(texts: Iterable[str], served: Sequence[Address], controllers: set[str]) -> dict[str, Address]:
    """Listener name → advertised address; empty when nothing is advertised. A single listener needs no name here."""
    names = [address.name for address in served]
    told = []
    for text in texts:
        address = parse_address(text, "advertised.listeners")
        if "://" not in text and len(served) == 1:
            address = address._replace(name=names[0])
        if address.name not in controllers:
            told.append(address)
    _check_names(told)
    found = {address.name: address for address in told}
    if not set(found) <= set(names):
        raise InvalidConfig(
            "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. "
            f"Found {','.join(found)}. The valid options based on the current configuration are {','.join(names)}"
        )
    if told and (missing := [name for name in names if name not in found]):
        raise InvalidConfig(
            f"advertised.listeners has no entry for listener {missing[0]}: clients of that listener would get "
            "no address"
        )
    for address in told:
        if address.every_interface:
            raise InvalidConfig(
                f"advertised.listeners cannot use the nonroutable meta-address {address.host or 'of every interface'}. "
                "Use a routable IP address, or a name that clients can reach."
            )
    return found


def _joined(address: Address, told: Address | None, host_name: str, protocol: SecurityProtocol) -> ListenerConfig:
    if told is None:
        host = host_name if address.every_interface else address.host
        return ListenerConfig(*address, host, address.port or None, protocol)
    return ListenerConfig(*address, told.host, told.port or None, protocol)


def _shown(addresses: Iterable[Address]) -> str:
    """The addresses in Kafka's format."""
    return f"[{', '.join(f'{one.name}://{show_address(one.host, one.port)}' for one in addresses)}]"
