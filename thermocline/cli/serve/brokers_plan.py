"""Plan of `serve --brokers N`: the arguments of each of N brokers on one machine. Pure.

Broker `i` lives in `DIR/broker-<id>`, on the first broker's ports plus `i` (port 0 stays 0), with a share of the memory
and disk limits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.config.network.addresses import show_address
from broker.config.sources import ConfigError
from broker.startup.ready_words import path_word
from logformat.record_batch import INT32_MAX
from thermocline.cli.serve.brokers_found import directory_of

_TAKE_OVER: Final = "--take-over"
_PORT_MAX: Final = 65_535
_COLD_FETCH_BYTES_MIN: Final = 1 << 20  # minimum for one broker


class ListenAt(NamedTuple):
    flag: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Child:
    """One of several brokers. `listeners` and `http` are values of its flags; `addresses`: its addresses with a fixed
    port, which must be free.
    """

    node_id: int
    data_dir: str
    listeners: str
    http: str | None  # None: --no-http
    others: tuple[str, ...]
    addresses: tuple[ListenAt, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `thermocline`."""
        http = ("--no-http",) if self.http is None else ("--http", self.http)
        own = ("--data-dir", self.data_dir, "--node-id", str(self.node_id), "--listen", self.listeners)
        return ("serve", *own, *http, *self.others, "--supervised")

    def at_addresses(self, ready: Mapping[str, str]) -> Child:
        """The same broker for a restart, without --take-over. It gets the addresses of its ready line, because clients
        keep these.
        """
        name = self.listeners.partition("://")[0]
        listeners = ready.get("listeners") or f"{name}://{ready['kafka']}"
        others = tuple(flag for flag in self.others if flag != _TAKE_OVER)
        return replace(self, listeners=listeners, http=None if self.http is None else ready["http"], others=others)


def plan(config: BrokerConfig, given: argparse.Namespace, count: int) -> tuple[Child, ...]:
    """The brokers, in order. `config`: the configuration of a single broker; `given`: its flags.

    Raises ConfigError for node ids and ports that do not exist or would be used twice.
    """
    if config.node_id + count - 1 > INT32_MAX:
        raise ConfigError(f"--node-id {config.node_id} is too high for {count} brokers: choose a lower one")
    children = tuple(_child(config, given, count, index) for index in range(count))
    _check_ports(children)
    return children


def _child(config: BrokerConfig, given: argparse.Namespace, count: int, index: int) -> Child:
    node_id = config.node_id + index
    addresses = [ListenAt("--listen", one.host, _port(one.port, index, "--listen")) for one in config.listeners]
    names = [one.name for one in config.listeners]
    http = None
    if config.http_host is not None:
        http = ListenAt("--http", config.http_host, _port(config.http_port, index, "--http"))
        addresses.append(http)
    if config.internal is not None:
        port = _port(config.internal.port, index, "--internal")
        addresses.append(ListenAt("--internal", config.internal.host, port))
    return Child(
        node_id,
        directory_of(config.data_dir, node_id),
        ",".join(f"{name}://{show_address(at.host, at.port)}" for name, at in zip(names, addresses, strict=False)),
        None if http is None else show_address(http.host, http.port),
        tuple(_others(config, given, count, index)),
        tuple(at for at in addresses if at.port),
    )


def _others(config: BrokerConfig, given: argparse.Namespace, count: int, index: int) -> Iterator[str]:
    """The other flags as given; the shares of limits come last, so that they win."""
    # The default is beside the common data directory.
    bucket = config.bucket_url if config.bucket_is_default else given.bucket
    passed = {
        "--bucket": bucket,
        "--rack": given.rack,
        "--config": given.config,
        "--log-format": given.log_format,
        "--log-level": given.log_level,
    }
    for flag, value in passed.items():
        if value is not None:
            yield from (flag, value)
    for flag, is_given in ((_TAKE_OVER, given.take_over), ("--insecure", given.insecure)):
        if is_given:
            yield flag
    if given.secure:
        yield from ("--secure", "--secured-by", config.data_dir)
    if "advertised.listeners" in config.configured:
        advertised = (
            f"{one.name}://{show_address(one.advertised_host, _port(one.advertised_port or 0, index, '--advertise'))}"
            for one in config.listeners
        )
        yield from ("--advertise", ",".join(advertised))
    if config.internal is not None and "thermocline.internal" in config.configured:
        port = _port(config.internal.port, index, "--internal")
        yield from ("--internal", show_address(config.internal.host, port))
    for pair in (*given.set, *(f"{name}={value}" for name, value in shares(config, count).items())):
        yield from ("--set", pair)


def shares(config: BrokerConfig, count: int) -> dict[str, int]:
    """Each broker's share of the common limits, by config name."""
    found = {
        "thermocline.brokers.on.disk": config.brokers_on_disk * count,
        "thermocline.cache.bytes": config.cache_bytes_max // count,
        "thermocline.cold.fetch.bytes.max": max(config.cold_fetch_bytes_max // count, _COLD_FETCH_BYTES_MIN),
    }
    if config.inflight_request_bytes_max is not None:
        # At least the largest request must fit.
        part = max(config.inflight_request_bytes_max // count, config.request_bytes_max)
        found["queued.max.request.bytes"] = part
    if config.local_bytes_max is not None:
        found["thermocline.local.bytes.max"] = config.local_bytes_max // count
    return found


def _port(first: int, index: int, flag: str) -> int:
    port = first + index if first else 0
    if port > _PORT_MAX:
        raise ConfigError(f"{flag} {first}: broker {index + 1} would need port {port}; choose a lower port")
    return port


def _check_ports(children: Sequence[Child]) -> None:
    """Raises ConfigError for a port used twice on one host. Conflicts under different names of one host are found when
    ports are bound.
    """
    seen: dict[tuple[str, int], tuple[int, str]] = {}
    for child in children:
        for at in child.addresses:
            node_id, flag = seen.setdefault((at.host, at.port), (child.node_id, at.flag))
            if (node_id, flag) != (child.node_id, at.flag):
                raise ConfigError(
                    f"{show_address(at.host, at.port)} would be {flag} of broker {node_id} and {at.flag} of broker "
                    f"{child.node_id}: each takes {len(children)} ports in a row, so leave room between them"
                )


def ready_line(children: Sequence[Child], ready: Mapping[int, Mapping[str, str]], data_dir: str) -> str:
    """The ready line of all brokers: addresses are lists (cli.md)."""
    lines = [ready[child.node_id] for child in children]

    def every(name: str) -> str:
        return ",".join(line[name] for line in lines)

    http = "-" if children[0].http is None else every("http")
    first, last = children[0].node_id, children[-1].node_id
    nodes = str(first) if first == last else f"{first}-{last}"
    line = (
        f"ready kafka={every('kafka')} http={http} node={nodes} cluster={lines[0]['cluster']} "
        f"data={path_word(data_dir)} bucket={lines[0]['bucket']}"
    )
    return f"{line} listeners={every('listeners')}" if "listeners" in lines[0] else line
