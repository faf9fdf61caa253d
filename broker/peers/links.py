"""Connections to the other brokers, one for each node and purpose.

A connection belongs to one session of a node. A node with a new session or address gets a new connection; requests on
the old one fail. Requests that must not wait for each other have separate purposes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from broker.metadata.records import Node
from broker.net.buffers import BufferPool
from broker.peers.connection import PeerConnection
from broker.peers.link_login import LinkLogin
from broker.peers.tls_client import ClientTls
from seams.net import Net

_IDLE_BYTES_MAX: Final = 8 << 20  # receive buffers kept for the next response
_KNOCK_S: Final = 0.25  # longest wait for a port that neither accepts nor refuses


class NoWayThere(ConnectionError):
    """The image has no address for the node."""


class Links:
    """The connections of broker `node_id`. `listener`: name of the brokers' listener (`inter.broker.listener.name`) on
    all of them. `frame_bytes_max`: size limit of a response. `tls` is set if that listener speaks TLS. `login` is set
    if that listener needs a login."""

    def __init__(
        self,
        net: Net,
        node_id: int,
        listener: str,
        frame_bytes_max: int,
        tls: ClientTls | None = None,
        login: LinkLogin | None = None,
    ) -> None:
        self._net = net
        self._login = login
        self._node_id = node_id
        self._listener = listener
        self._frame_bytes_max = frame_bytes_max
        self._tls = tls
        self._pool = BufferPool(_IDLE_BYTES_MAX)
        self._open: dict[tuple[int, str], tuple[Node, PeerConnection]] = {}
        self._is_closed = False

    def to(self, node: Node, purpose: str) -> PeerConnection:
        """The connection to this session of a node. Raises NoWayThere."""
        if self._is_closed:
            raise NoWayThere(f"broker {node.node_id} gets no more requests: this broker is stopping")
        known = self._open.get((node.node_id, purpose))
        if known is not None and known[0] is node:  # the image has not changed the node
            return known[1]
        if known is not None and _is_same_way(known[0], node, self._listener):
            return known[1]
        address = _address(node, self._listener)
        if address is None:
            raise NoWayThere(
                f"broker {node.node_id} has no listener {self._listener}: give all brokers the same "
                "inter.broker.listener.name"
            )
        if known is not None:
            known[1].close()
        client_id = f"broker-{self._node_id}-{purpose}"
        made = PeerConnection(self._net, address, client_id, self._pool, self._frame_bytes_max, self._tls, self._login)
        self._open[node.node_id, purpose] = node, made
        return made

    async def refuses(self, node: Node) -> bool:
        """Whether the node's port refuses a connection within 0.25 s. False if the network drops bytes or the address
        is unknown."""
        address = _address(node, self._listener)
        if self._is_closed or address is None:
            return False
        try:
            transport = await self._net.connect(*address, asyncio.Protocol(), _KNOCK_S)
        except ConnectionRefusedError:
            return True
        except OSError:  # TimeoutError is an OSError
            return False
        transport.abort()
        return False

    def close_ended(self, nodes: Mapping[int, Node]) -> None:
        """Close the connections to sessions that are not in `nodes`, the nodes of a newer image."""
        for place, (node, connection) in tuple(self._open.items()):
            now = nodes.get(node.node_id)
            if now is None or now.broker_epoch > node.broker_epoch:
                del self._open[place]
                connection.close()

    def close(self) -> None:
        """Close all connections, and never open one again."""
        self._is_closed = True
        for _, connection in self._open.values():
            connection.close()
        self._open.clear()


def _address(node: Node, listener: str) -> tuple[str, int] | None:
    return next(((one.host, one.port) for one in node.listeners if one.name == listener), None)


def _is_same_way(known: Node, node: Node, listener: str) -> bool:
    return known.broker_epoch == node.broker_epoch and _address(known, listener) == _address(node, listener)
