"""`serve --secure`: prepares the data directory and returns the broker's configuration.

A new directory begins a new cluster, unless `--join` names one. The first user's password is printed once, to stderr,
and stored in `admin.properties`. Later starts read these files, and renew the certificate if due.
"""

from __future__ import annotations

import argparse
import secrets
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from broker.config.broker_config import BrokerConfig
from broker.config.network.addresses import show_address
from broker.metadata.cluster_content import CLUSTER_FORMAT
from coldstore.keys import cluster_key
from coldstore.roots.root import RootStore
from coldstore.url import DirectoryUrl, parse_bucket_url
from logformat.jaas import parse_jaas
from logformat.properties import format_properties, properties_in
from thermocline.cli.bucket.reading import Bucket, with_bucket
from thermocline.cli.clients.client_properties import HTTP_TOKEN
from thermocline.cli.serve.secure import settings
from thermocline.cli.serve.secure.authority import Authority
from thermocline.cli.serve.secure.directory import SecuredDirectory, joined, write_secret
from thermocline.cli.serve.secure.joining import refuse_another_clusters_file
from thermocline.cli.terminal.outcome import CommandFailed, Exit


class Resolve(Protocol):
    """The configuration, with `defaults` for missing configs. `is_judged`: refuse addresses without authentication that
    other machines reach."""

    def __call__(self, defaults: Mapping[str, str], *, is_judged: bool = True) -> BrokerConfig: ...


_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_JAAS: Final = "sasl.jaas.config"
_TRUST: Final = "ssl.truststore.certificates"
_BOOTSTRAP: Final = "bootstrap.servers"
JAVA_CLIENT: Final = "client.properties"
LIBRDKAFKA_CLIENT: Final = "client.librdkafka.properties"


def secured_config(arguments: argparse.Namespace, resolve: Resolve, host_name: str) -> BrokerConfig:
    """Raises CommandFailed, ConfigError."""
    plain = resolve(settings.CLIENTS, is_judged=False)  # the protection of its addresses is added below
    if plain.read_only:
        raise CommandFailed(
            "--secure makes a cluster's users and keys, and a read-only broker writes none: configure its listener "
            "with ssl.* and sasl.* (docs/security.md)",
            Exit.USAGE,
        )
    secured = SecuredDirectory(Path(arguments.secured_by or plain.data_dir))
    _make_private(secured.data_dir, plain)
    password = _prepare(secured, arguments.join, plain)
    config = resolve(settings.broker_configs(secured, plain, password))
    now = datetime.now(UTC)
    if secured.certify(config.node_id, _hosts(config, host_name), now):
        print(f"new certificate of broker {config.node_id}: {secured.broker_file(config.node_id)}", file=sys.stderr)
    elif (expires := secured.ending(config.node_id, now)) is not None:
        print(
            f"warning: {secured.broker_file(config.node_id)} ends on {expires:%Y-%m-%d}, and without "
            f"{secured.authority_key_file} it cannot be renewed: put the CA's key back and start again before that day",
            file=sys.stderr,
        )
    return config


def _prepare(secured: SecuredDirectory, join: str | None, config: BrokerConfig) -> str | None:
    """Create authority and first user if they are missing. Returns the first user's password, if known."""
    if join is not None and secured.is_new:
        authority, token = joined(Path(join))
        refuse_another_clusters_file(join, authority.certificate, config)
        secured.establish(authority, token)
        _warn_if_open(Path(join), "the key of the cluster's CA", "600")
    elif secured.is_new:
        _refuse_a_second_cluster(config)
        password, token = secrets.token_urlsafe(18), secrets.token_urlsafe(32)
        authority = Authority.new(datetime.now(UTC))
        # Before the authority, because a directory with an authority but no first user would create a cluster without
        # any login.
        _write_clients(secured, password, token, authority.certificate_pem.decode(), _bootstrap(config))
        secured.establish(authority, token)
        shown = f", password {password} (not printed again)" if sys.stderr.isatty() else ""  # a log keeps no secrets
        print(
            f"secured {secured.data_dir}: user {settings.ADMIN_USER}{shown}; {secured.admin_file} has the password "
            f"(thermocline topic list --command-config {secured.admin_file})",
            file=sys.stderr,
            flush=True,
        )
        return password
    else:
        _follow(secured, config)
    return _known_password(secured)


def _make_private(data_dir: Path, config: BrokerConfig) -> None:
    """New directories of records and SCRAM keys are accessible only to their owner. An existing directory keeps its
    mode, because others may be meant to read it; a warning says that they can."""
    bucket = parse_bucket_url(config.bucket_url)
    places = [data_dir, Path(config.data_dir), *([Path(bucket.path)] if isinstance(bucket, DirectoryUrl) else [])]
    for place in dict.fromkeys(places):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                place.mkdir(mode=0o700)
            _warn_if_open(place, "records or users' keys", "700")
        except OSError as failed:
            raise CommandFailed(f"{place}: {failed.strerror}", Exit.FAILED) from failed


def _warn_if_open(place: Path, holds: str, mode: str) -> None:
    if place.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        print(
            f"warning: other users of this machine may open {place}, which holds {holds}: chmod {mode} {place}",
            file=sys.stderr,
        )


def _known_password(secured: SecuredDirectory) -> str | None:
    if not secured.admin_file.exists():
        return None
    given = dict(properties_in(secured.admin_file.read_text("utf-8")))
    return parse_jaas(given[_JAAS], _JAAS).options.get("password") if _JAAS in given else None


def _refuse_a_second_cluster(config: BrokerConfig) -> None:
    """Refuse a bucket with a cluster, which already has an authority and users."""
    if (cluster_id := with_bucket(config.bucket_url, _cluster_id)) is not None:
        raise CommandFailed(
            f"{config.bucket_url} belongs to cluster {cluster_id}, and {config.data_dir} has none of its keys: give "
            "--join FILE with the join.properties of one of its brokers; if the cluster was never secured, or its CA "
            f"is lost: thermocline certificate authority --data-dir {config.data_dir}",
            Exit.REFUSED,
        )


async def _cluster_id(bucket: Bucket) -> str | None:
    """None: the bucket was never formatted."""
    root = await RootStore(bucket.store, cluster_key(), CLUSTER_FORMAT, bucket.world.rng, bucket.world.clock).load()
    return None if root is None else root.content.cluster_id


def _write_clients(
    secured: SecuredDirectory, password: str, token: str, authority_pem: str, bootstrap: str | None
) -> None:
    template = settings.java_client("USER", "PASSWORD", authority_pem, bootstrap)
    write_secret(secured.data_dir / JAVA_CLIENT, format_properties(template))
    librdkafka = settings.librdkafka_client("USER", "PASSWORD", str(secured.authority_file), bootstrap)
    write_secret(secured.data_dir / LIBRDKAFKA_CLIENT, librdkafka)
    admin = settings.java_client(settings.ADMIN_USER, password, authority_pem, bootstrap) | {HTTP_TOKEN: token}
    write_secret(secured.admin_file, format_properties(admin))


def _follow(secured: SecuredDirectory, config: BrokerConfig) -> None:
    """Update the client configurations with the current authority and token (`thermocline certificate authority`
    replaces them), and with the current address (another `--listen` or `--advertise`)."""
    present = {_TRUST: secured.authority_file.read_text("ascii")}
    if secured.token_file.exists():
        present[HTTP_TOKEN] = secured.token_file.read_text("ascii").split("\n")[0]
    for file in (secured.admin_file, secured.data_dir / JAVA_CLIENT):
        if file.exists():
            has = dict(properties_in(file.read_text("utf-8")))
            wanted = has | {name: value for name, value in present.items() if name in has}
            wanted |= _moved(secured, config, has)
            if wanted != has:
                write_secret(file, format_properties(wanted))
    file = secured.data_dir / LIBRDKAFKA_CLIENT
    if file.exists():
        lines = file.read_text("utf-8").splitlines()
        moved = _moved(secured, config, dict(line.partition("=")[::2] for line in lines))
        changed = {name: f"{name}={address}" for name, address in moved.items()}
        wanted_lines = [changed.get(line.partition("=")[0], line) for line in lines]
        if wanted_lines != lines:
            write_secret(file, "".join(f"{line}\n" for line in wanted_lines).encode())


def _moved(secured: SecuredDirectory, config: BrokerConfig, has: Mapping[str, str]) -> dict[str, str]:
    """The address for a file with these properties, if it changed. A list of addresses stays: the operator wrote it. If
    several brokers share the directory (`--brokers N`), the first one's address is used, so that they do not replace
    one another's address.
    """
    address, written = _bootstrap(config), has.get(_BOOTSTRAP)
    is_first = config.node_id <= min(secured.nodes(), default=config.node_id)
    return {_BOOTSTRAP: address} if address and written and "," not in written and is_first else {}


def _bootstrap(config: BrokerConfig) -> str | None:
    first = config.listeners[0]
    return show_address(first.advertised_host, first.advertised_port) if first.advertised_port else None


def _hosts(config: BrokerConfig, host_name: str) -> tuple[str, ...]:
    """Names and addresses by which clients and brokers reach this broker."""
    every = config.every_listener
    bound = [one.host for one in every if not one.address.every_interface]
    told = [one.advertised_host for one in every]
    http = [config.http_host] if config.http_host not in (None, "", "0.0.0.0", "::") else []
    return tuple(dict.fromkeys(host for host in (*told, *bound, *http, host_name, *_LOCAL) if host))
