"""The places of a broker: data directory, bucket, and addresses, with what is refused of them.

Bucket and data directory are not inside one another. An address that other machines reach needs --insecure. Pure: paths
are not looked up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import NamedTuple

from broker.config.addresses import Address, parse_address
from broker.config.listeners import BrokersListener, ListenerConfig, ListenerTexts, brokers_listener, read_listeners
from broker.config.sources import ConfigError, Explicit
from coldstore.url import BucketUrl, DirectoryUrl, parse_bucket_url, with_key_file


class Launch(NamedTuple):
    """Values that only the command line and the machine know, never a file."""

    take_over: bool = False  # --take-over
    read_only: bool = False  # --read-only
    insecure: bool = False  # --insecure: addresses that other machines reach are allowed
    host_name: str = "localhost"  # advertised where every interface is listened on
    working_dir: str = "/"  # relative paths start here


class Addresses(NamedTuple):
    listeners: tuple[ListenerConfig, ...]
    brokers: BrokersListener
    http: Address | None


def addresses(values: Explicit, launch: Launch) -> Addresses:
    """Raises ConfigError for addresses that other machines reach, unless allowed."""
    texts = _listener_texts(values)
    listeners = read_listeners(texts, launch.host_name)
    http = parse_address(text, "thermocline.http") if (text := values.text("thermocline.http").strip()) else None
    brokers = brokers_listener(texts, listeners, launch.host_name)
    reached = [("listeners", listener.address) for listener in listeners]
    if brokers.own is not None:
        reached.append(("thermocline.internal", brokers.own.address))
    if http is not None:
        reached.append(("thermocline.http", http))
    _check_reach(reached, insecure=launch.insecure)
    return Addresses(listeners, brokers, http)


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


def _check_reach(reached: Iterable[tuple[str, Address]], *, insecure: bool) -> None:
    """`reached`: bound addresses, each with the config that names it."""
    for config, address in reached:
        if not address.loopback and not insecure:
            raise ConfigError(
                f"{config}: {address.host or 'every interface'} can be reached by other machines, and there is no "
                "authentication yet; listen on 127.0.0.1, or add --insecure when the network is trusted"
            )


def data_dir_of(values: Explicit, launch: Launch) -> str:
    directories = values.texts("log.dirs") or values.texts("log.dir")
    if not directories:
        raise ConfigError("no data directory: give --data-dir DIR, or log.dirs in the file")
    if len(directories) > 1:
        raise ConfigError(f"log.dirs names {len(directories)} directories; one broker keeps its log in exactly one")
    return posixpath.normpath(posixpath.join(launch.working_dir, directories[0]))


def bucket_url(values: Explicit, data_dir: str) -> BucketUrl:
    """The bucket: as configured, else a directory beside the data directory."""
    text = values.text("thermocline.bucket")
    bucket = parse_bucket_url(text) if text else DirectoryUrl(f"{data_dir}-bucket")
    if isinstance(bucket, DirectoryUrl) and nested(bucket.path, data_dir):
        raise ConfigError(
            f"bucket {bucket.path} and data directory {data_dir} lie inside one another; "
            "give the bucket a directory of its own, better on another disk"
        )
    return with_key_file(bucket, values.text("thermocline.encryption.key.file"))


def nested(one: str, other: str) -> bool:
    """Whether two absolute normal paths are the same, or one is inside the other."""
    one, other = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)
