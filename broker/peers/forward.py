"""Forwards clients' requests that only the controller may answer, in an Envelope with the client's identity (KIP-590).

A request is sent again once, to another controller, if the first broker certainly did not execute it (NOT_CONTROLLER,
or no process listens). The response is returned after this broker applied the image of the change, so that the client
can read the result here.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from broker.error_codes import ErrorCode
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.metadata.cluster_content import ControllerAt
from broker.net.dispatch import Peer
from broker.peers.links import Links
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import FRAME_PREFIX_SIZE, RequestHeader, parse_response_header, request_frame
from broker.wire.message import Message
from broker.wire.messages import EnvelopeRequest, EnvelopeResponse

log = logging.getLogger(__name__)

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
    }
)
"""APIs that any broker accepts and only the controller executes."""

FORWARDED_BYTES_MAX: Final = 8 << 20
APPLY_WAIT_S: Final = 10.0
"""Longest wait of a response for this broker's image: two polls of `cluster.json`. The change is committed already."""
_LOOK_AGAIN_S: Final = 5.0
_LANES: Final = 4  # connections: responses are in order, so a slow one delays those behind it
_GRACE_S: Final = 5.0
_TIMEOUT_S: Final = 30.0  # for requests that have no timeout
_TIMEOUT_MAX_S: Final = 120.0
_VERSION: Final = 0


class Forward:
    def __init__(self, metadata: MetadataCache, feed: ImageFeed, links: Links, node_id: int, listener: str) -> None:
        self._metadata = metadata
        self._feed = feed
        self._links = links
        self._node_id = node_id
        self._own = Peer(0, "", listener)  # the client of this broker's own requests
        self._correlation_id = 0

    def is_elsewhere(self) -> bool:
        """Whether the image names another broker as the controller."""
        return not self._metadata.is_decided_by(self._node_id)

    async def pass_on(self, peer: Peer, header: RequestHeader, request: Message) -> bytes | None:
        """The controller's response to `request`: a frame without length prefix. None if there is no response. The
        caller then answers NOT_CONTROLLER, which clients retry."""
        key, version = header.api_key, header.api_version
        body = encode_request(key, version, request)
        parts = request_frame(key, version, header.correlation_id, header.client_id, body)
        frame = b"".join(parts)[FRAME_PREFIX_SIZE:]  # type: ignore[arg-type]
        timeout_ms = getattr(request, "timeout_ms", None)
        wait_s = _TIMEOUT_S if timeout_ms is None else min(max(timeout_ms, 0) / 1000, _TIMEOUT_MAX_S)
        return await self.to_controller(peer, frame, wait_s + _GRACE_S)

    async def ask(self, api_key: int, version: int, request: Message) -> Message | None:
        """The controller's response to a request of this broker itself. None as in `pass_on`."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(api_key, version, self._correlation_id, f"broker-{self._node_id}")
        frame = await self.pass_on(self._own, header, request)
        if frame is None:
            return None
        view = memoryview(frame)
        _, at = parse_response_header(view, api_key, version)
        return decode_response(api_key, version, view[at:])

    async def to_controller(self, peer: Peer, frame: bytes, timeout_s: float) -> bytes | None:
        """Forward a request's frame and return the response's frame. Neither has a length prefix. None as in
        `pass_on`."""
        if len(frame) > FORWARDED_BYTES_MAX:
            log.warning(
                "a request of %d bytes is not forwarded to the controller, which accepts at most %d",
                len(frame),
                FORWARDED_BYTES_MAX,
            )
            return None
        principal = None if peer is self._own else peer.principal.encode()
        request = EnvelopeRequest(frame, principal, _address(peer), peer.listener)
        for _ in range(2):
            at = self._metadata.decided_elsewhere(self._node_id)
            if at is None:
                return None
            answer = await self._ask(at, request, timeout_s)
            if answer is None:
                return None
            if answer.error_code == ErrorCode.NONE:
                await self._wait_applied(answer.position)
                return answer.response_data
            if answer.error_code != ErrorCode.NOT_CONTROLLER:
                code = ErrorCode(answer.error_code).name
                log.warning("the controller, broker %d, refuses forwarded requests: %s", at.node_id, code)
                return None
            if not await self._another_than(at) or peer.is_gone:
                return None  # a client that is gone may have sent the request again through another broker
        return None

    async def _ask(self, at: ControllerAt, request: EnvelopeRequest, timeout_s: float) -> EnvelopeResponse | None:
        """The controller's response. NOT_CONTROLLER if no process listens there. None if the request could not be sent,
        or was sent and got no response."""
        node = self._metadata.image.nodes.get(at.node_id)
        if node is None:
            return None
        try:
            lanes = [self._links.to(node, f"clients-{lane}") for lane in range(_LANES)]
            answer = await min(lanes, key=lambda lane: lane.in_flight).ask(request, _VERSION, timeout_s)
        except ConnectionRefusedError as gone:
            log.warning("no request was sent to the controller, broker %d: %s", at.node_id, gone)
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        except (ConnectionError, TimeoutError) as unanswered:
            log.warning("the controller, broker %d, did not answer: %s", at.node_id, unanswered)
            return None
        assert isinstance(answer, EnvelopeResponse)
        return answer

    async def _wait_applied(self, position: int) -> None:
        """Wait until this broker applied the image at `position`, at most 10 s."""
        with suppress(TimeoutError):
            async with asyncio.timeout(APPLY_WAIT_S):
                await self._feed.until(lambda: self._feed.position >= position)

    async def _another_than(self, at: ControllerAt) -> bool:
        """Wait up to 5 s until the image names another controller. Returns whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._feed.until(lambda: self._metadata.controller != at)
        return self._metadata.controller != at


def _address(peer: Peer) -> bytes:
    """The peer's IP address in 4 or 16 bytes; empty if the peer has none."""
    try:
        return ip_address(peer.host).packed
    except ValueError:
        return b""
