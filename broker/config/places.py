"""Validates a broker's data directory, bucket and addresses.

The bucket may not be inside the data directory, nor the data directory inside the bucket. An address that other
machines reach must have encryption and authentication, unless --insecure is given (S10). Pure: the file system is not
read.
"""

from __future__ import annotations

import posixpath
from typing import Final, NamedTuple

from broker.config.network.addresses import Address, parse_address, show_address
from broker.config.network.listeners import (
    BROKERS,
    BrokersListener,
    ListenerConfig,
    ListenerTexts,
    brokers_listener,
    read_listeners,
)
from broker.config.sources import ConfigError, Explicit
from broker.security_protocol import SecurityProtocol
from coldstore.url import BucketUrl, DirectoryUrl, parse_bucket_url, with_key_file

_PROTECTION: Final = "let it speak SASL_SSL, or SSL with ssl.client.auth=required"


class Launch(NamedTuple):
    """Values that only the command line and the machine know, never a file."""

    take_over: bool = False  # --take-over
    read_only: bool = False  # --read-only
    insecure: bool = False  # --insecure: addresses that other machines reach are allowed
    host_name: str = "localhost"  # advertised by a listener on every interface
    working_dir: str = "/"  # relative paths start here


class Addresses(NamedTuple):
    listeners: tuple[ListenerConfig, ...]
    brokers: BrokersListener
    http: Address | None
    insecure: tuple[str, ...] = ()  # addresses open to other machines without authentication, because of --insecure


def addresses(values: Explicit, launch: Launch) -> Addresses:
    """Read the addresses. Raises ConfigError for an unprotected address that other machines reach, unless `launch`
    allows it."""
    texts = _listener_texts(values)
    listeners = read_listeners(texts, launch.host_name)
    http = parse_address(text, "thermocline.http") if (text := values.text("thermocline.http").strip()) else None
    brokers = brokers_listener(texts, listeners, launch.host_name)
    every = listeners if brokers.own is None else (*listeners, brokers.own)
    open_ = [_Open.of(listener) for listener in every if not _is_protected(listener, values)]
    if http is not None and not _is_http_protected(values):
        open_.append(
            _Open(
                "thermocline.http", http, "set thermocline.http.ssl.keystore.location and thermocline.http.token.file"
            )
        )
    reached = [one for one in open_ if not one.address.loopback]
    if reached and not launch.insecure:
        raise ConfigError(str(reached[0]))
    return Addresses(listeners, brokers, http, tuple(one.shown for one in reached))


def _listener_texts(values: Explicit) -> ListenerTexts:
    return ListenerTexts(
        listeners=values.texts("listeners"),
        advertised=values.texts("advertised.listeners"),
        protocols=values.text("listener.security.protocol.map"),
        controllers=values.texts("controller.listener.names"),
        inter_broker=values.text("inter.broker.listener.name") or None,
        inter_broker_protocol=values.configured.get("security.inter.broker.protocol"),
        internal=values.text("thermocline.internal"),
        is_internal_written="thermocline.internal" in values.configured,
    )


class _Open(NamedTuple):
    """An address without authentication or encryption. It names the config and a remedy."""

    config: str
    address: Address
    protection: str

    @staticmethod
    def of(listener: ListenerConfig) -> _Open:
        config = "thermocline.internal" if listener.name == BROKERS else "listeners"
        return _Open(config, listener.address, _PROTECTION)

    @property
    def shown(self) -> str:
        return f"{self.config} {self.address.name}://{show_address(self.address.host, self.address.port)}"

    def __str__(self) -> str:
        return (
            f"{self.config}: {self.address.host or 'every interface'} can be reached by other machines, without "
            f"authentication and encryption; {self.protection}, listen on 127.0.0.1, or add --insecure when the "
            "network is trusted"
        )


def _is_protected(listener: ListenerConfig, values: Explicit) -> bool:
    """Whether clients of the listener are authenticated and the connection is encrypted."""
    if listener.protocol is SecurityProtocol.SSL:
        return values.of_listener(listener.name).text("ssl.client.auth") == "required"
    return listener.protocol is SecurityProtocol.SASL_SSL


def _is_http_protected(values: Explicit) -> bool:
    return bool(values.text("thermocline.http.ssl.keystore.location") and values.text("thermocline.http.token.file"))


def data_dir_of(values: Explicit, launch: Launch) -> str:
    directories = values.texts("log.dirs") or values.texts("log.dir")
    if not directories:
        raise ConfigError("no data directory: give --data-dir DIR, or log.dirs in the file")
    if len(directories) > 1:
        raise ConfigError(f"log.dirs names {len(directories)} directories; one broker keeps its log in exactly one")
    return posixpath.normpath(posixpath.join(launch.working_dir, directories[0]))


def bucket_url(values: Explicit, data_dir: str) -> BucketUrl:
    """The URL of the bucket: the configured URL, or else the URL of a directory beside the data directory."""
    text = values.text("thermocline.bucket")
    bucket = parse_bucket_url(text) if text else DirectoryUrl(f"{data_dir}-bucket")
    if isinstance(bucket, DirectoryUrl) and nested(bucket.path, data_dir):
        raise ConfigError(
            f"bucket {bucket.path} and data directory {data_dir} are inside one another; "
            "give the bucket a directory of its own, better on another disk"
        )
    return with_key_file(bucket, values.text("thermocline.encryption.key.file"))


def nested(one: str, other: str) -> bool:
    """Whether two absolute normal paths are the same, or one is inside the other."""
    one, other = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)
