"""Connections to the other brokers of the cluster: one for each node and purpose.

Owns them all. Always true: a connection leads to the session it was asked for: a node that began another session, or
has another address, gets another connection, and who waits on the old one hears that it is closed. Must not know what
is asked, nor what a purpose is for: it keeps apart what must not wait for one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from broker.metadata.records import Node
from broker.net.buffers import BufferPool
from broker.peers.connection import PeerConnection
from seams.net import Net

_IDLE_BYTES_MAX: Final = 8 << 20  # of receive buffers kept for the next answer
_KNOCK_S: Final = 0.25  # to wait for a port that neither accepts nor refuses


class NoWayThere(ConnectionError):
    """The cluster's metadata does not say where the node can be asked."""


class Links:
    """Of broker `node_id`. `listener`: the name of the one that brokers use (`inter.broker.listener.name`), of this
    broker and of the others. `frame_bytes_max`: of an answer."""

    def __init__(self, net: Net, node_id: int, listener: str, frame_bytes_max: int) -> None:
        self._net = net
        self._node_id = node_id
        self._listener = listener
        self._frame_bytes_max = frame_bytes_max
        self._pool = BufferPool(_IDLE_BYTES_MAX)
        self._open: dict[tuple[int, str], tuple[Node, PeerConnection]] = {}
        self._is_closed = False

    def to(self, node: Node, purpose: str) -> PeerConnection:
        """The connection to this session of a node. Raises NoWayThere."""
        if self._is_closed:
            raise NoWayThere(f"broker {node.node_id} is asked nothing any more: this broker stops")
        known = self._open.get((node.node_id, purpose))
        if known is not None and known[0] is node:  # as of the same image, or of one in which it did not change
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
        made = PeerConnection(self._net, address, client_id, self._pool, self._frame_bytes_max)
        self._open[node.node_id, purpose] = node, made
        return made

    async def refuses(self, node: Node) -> bool:
        """Whether nobody listens where this node is asked. A way that swallows bytes does not say so, nor one that
        nobody knows; 0.25 s at most."""
        address = _address(node, self._listener)
        if self._is_closed or address is None:
            return False
        try:
            transport = await self._net.connect(*address, asyncio.Protocol(), _KNOCK_S)
        except ConnectionRefusedError:
            return True
        except OSError:  # TimeoutError too
            return False
        transport.abort()
        return False

    def obey(self, nodes: Mapping[int, Node]) -> None:
        """`nodes` of a newer image: close what leads to a session that is over."""
        for place, (node, connection) in tuple(self._open.items()):
            now = nodes.get(node.node_id)
            if now is None or now.broker_epoch > node.broker_epoch:
                del self._open[place]
                connection.close()

    def close(self) -> None:
        """All of them, for good."""
        self._is_closed = True
        for _, connection in self._open.values():
            connection.close()
        self._open.clear()


def _address(node: Node, listener: str) -> tuple[str, int] | None:
    return next(((one.host, one.port) for one in node.listeners if one.name == listener), None)


def _is_same_way(known: Node, node: Node, listener: str) -> bool:
    return known.broker_epoch == node.broker_epoch and _address(known, listener) == _address(node, listener)
