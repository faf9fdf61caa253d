"""Check that a `join.properties` file belongs to the cluster of the given bucket.

The bucket does not name the CA, so the certificates that running brokers show decide. A file is refused only if a
broker shows a certificate of another cluster's CA. If no broker answers, nothing is known, and the start continues.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509

from broker.metadata.cluster_root import ClusterRoot
from coldstore.object_store import StoreError
from thermocline.cli.bucket.reading import Bucket, with_bucket
from thermocline.cli.serve.secure.authority import is_of_another_cluster
from thermocline.cli.terminal.outcome import CommandFailed, Exit

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig

_ASKED_MAX: Final = 3
_TIMEOUT_S: Final = 3.0


class Place(NamedTuple):
    """A broker's address for brokers."""

    node_id: int
    host: str
    port: int


def refuse_another_clusters_file(join_file: str, authority: x509.Certificate, config: BrokerConfig) -> None:
    """Raises CommandFailed if the brokers that answer have certificates of another cluster's CA."""
    strangers = []
    for place in _brokers(config):
        certificate = _shown(place)
        if certificate is None:
            continue
        if not is_of_another_cluster(certificate, authority):
            return
        strangers.append(place)
    if strangers:
        node_id, host, port = strangers[0]
        raise CommandFailed(
            f"--join {join_file} is of another cluster: its CA is not that of broker {node_id} at {host}:{port}; give "
            "the join.properties of a broker of this bucket; nothing was changed",
            Exit.REFUSED,
        )


def _brokers(config: BrokerConfig) -> list[Place]:
    """Some other brokers of the bucket's cluster; none if the bucket does not answer (the start itself waits for the
    bucket)."""

    async def read(bucket: Bucket) -> list[Place]:
        world = bucket.world
        found = await ClusterRoot(bucket.store, world.rng, world.clock, world.workers).load()
        nodes = () if found is None else found.image.nodes.values()
        return [
            Place(node.node_id, one.host, one.port)
            for node in nodes
            if node.active and node.node_id != config.node_id
            for one in node.listeners
            if one.name == config.brokers_listener
        ]

    with suppress(StoreError):
        return with_bucket(config.bucket_url, read)[:_ASKED_MAX]
    return []


def _shown(place: Place) -> x509.Certificate | None:
    """The certificate that the broker shows; None: it does not answer."""
    try:
        pem = ssl.get_server_certificate((place.host, place.port), timeout=_TIMEOUT_S)
    except OSError:
        return None
    return x509.load_pem_x509_certificate(pem.encode())
