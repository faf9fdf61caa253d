"""When a group's offsets may expire, and what its members subscribe to.

Owns the rule of KIP-211 and KIP-496's knowledge of subscriptions. Always true: while it is not known what the members
of a group read, none of its offsets expires. Must not know the offsets themselves.
Source: KIP-211; Kafka 4.3's `ClassicGroup.offsetExpirationCondition`. The subscription is opaque except for its prefix,
which all versions share (KIP-429 "ConsumerProtocolSubscription": version int16, topics [string]).
"""

from __future__ import annotations

import struct
from typing import Final

from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import GroupState
from broker.groups.offsets import OffsetExpiry

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def expiry_rule(group: ClassicGroup) -> OffsetExpiry | None:
    """The rule as the group stands now; None: nothing of it expires."""
    if group.protocol_type is None:  # offsets of consumers outside group management
        return OffsetExpiry(None, frozenset())
    if group.state is GroupState.EMPTY:
        return OffsetExpiry(group.state_since_ms if group.state_since_ms >= 0 else None, frozenset())
    if group.is_consumer_group and group.state is GroupState.STABLE:
        subscribed = subscribed_of(group)
        return None if subscribed is None else OffsetExpiry(None, subscribed)
    return None


def subscribed_of(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that a group's members subscribe to under its protocol; None when that is not known."""
    topics: set[str] = set()
    for member in group.members:
        of_member = subscribed_topics(member.subscriptions.get(group.protocol_name or "", b""))
        if of_member is None:
            return None
        topics |= of_member
    return frozenset(topics)


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Topics of a consumer protocol subscription, None when it does not parse."""
    try:
        (version,) = _INT16.unpack_from(subscription, 0)
        (count,) = _INT32.unpack_from(subscription, 2)
        if version < 0 or not 0 <= count <= len(subscription) // 2:
            return None
        at = 6
        topics = set()
        for _ in range(count):
            (length,) = _INT16.unpack_from(subscription, at)
            at += 2
            if length < 0 or at + length > len(subscription):
                return None
            topics.add(subscription[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
