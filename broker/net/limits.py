"""All limits of the TCP side, in one value. `broker.startup.limits` fills it from Kafka's configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from seams.net import SocketBuffers

_MIB = 1 << 20
_BUFFERS = SocketBuffers(send=102_400)


class ListenerLimits(msgspec.Struct, frozen=True):
    """Limits of a single listener. None: the broker's limit applies."""

    most: int | None = None  # listener.name.NAME.max.connections
    per_s: float | None = None  # listener.name.NAME.max.connection.creation.rate


NO_LIMITS: Final = ListenerLimits()


class NetLimits(msgspec.Struct, frozen=True):
    """Limits in bytes, milliseconds and counts; the comments name Kafka's config."""

    request_bytes_max: int = 100 * _MIB  # socket.request.max.bytes
    frame_bytes_total_max: int = 256 * _MIB  # of all connections; 16 KiB (`ALLOWANCE`) of each do not count
    answers_in_flight_max: int = 128  # per connection; 128 entries of about 0.4 KiB stay within the 64 KiB of G14
    idle_ms_max: int = 600_000  # connections.max.idle.ms; also the longest throttle
    frame_ms_max: int = 30_000  # from a frame's first byte to its last
    handshake_ms_max: int = 10_000  # from the admission to the end of the TLS handshake
    write_stall_ms_max: int = 120_000  # time without the peer taking a single byte of its responses
    connections_max: int = 10_000  # max.connections: further connections wait
    connections_per_ip_max: int = 2_000  # max.connections.per.ip: further connections are closed, as in Kafka
    connections_per_ip_overrides: Mapping[str, int] = msgspec.field(
        default_factory=dict
    )  # max.connections.per.ip.overrides
    connections_per_s_max: float = 1_000.0  # max.connection.creation.rate: further connections wait
    of_listener: Mapping[str, ListenerLimits] = msgspec.field(default_factory=dict)
    connections_waiting_max: int = 4_096  # accepted by the kernel, not yet admitted; further connections are closed
    buffers: SocketBuffers = _BUFFERS  # socket.send.buffer.bytes, socket.receive.buffer.bytes
    wide_send_buffers_max: int = 630  # connections with a wide send buffer (`WideSendBuffers`): 256 MiB in the kernel
    drain_ms_max: int = 10_000  # time from SIGTERM in which responses in flight may leave
