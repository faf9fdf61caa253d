"""Why nothing comes or goes: what the broker and the topic's configs say when a client only says that it was late.

Owns the questions a command asks then. Always true: what cannot be asked costs the sentence, never the command. Must
not know which command waits.
"""

from __future__ import annotations

from thermocline.cli.terminal.outcome import CommandFailed

MIN_IN_SYNC = "min.insync.replicas"


def said_by_broker(bootstrap: str, topic: str) -> str:
    """`; why` as a Thermocline broker says it of itself and of the topic; "" when it says nothing, or is no such."""
    from thermocline.cli.clients.wire_client import BrokerUnreachable
    from thermocline.cli.tier.source import TierSource

    source = TierSource(bootstrap, topic, None)
    try:
        blocked = sorted({row.blocked_by for row in source.read() if row.blocked_by})
    except (CommandFailed, BrokerUnreachable) as failed:
        return f": {failed}"
    told = source.conditions()
    if blocked and not told:
        told = [f"{topic} is blocked by {', '.join(blocked)}; see `thermocline tier status`"]
    return "".join(f"; {line}" for line in told)


def unmet_replicas(bootstrap: str, topic: str) -> str:
    """That a partition of the topic has fewer in-sync replicas than acks=all needs: clients try again until they are
    late, and never say so. "" when all have enough, or the broker does not say."""
    from thermocline.cli.clients.connections import connect
    from thermocline.cli.clients.wire_client import TOPIC_RESOURCE, BrokerUnreachable

    try:
        with connect(bootstrap) as client:
            found = client.metadata([topic]).topics
            wanted = client.configs(TOPIC_RESOURCE, topic, [MIN_IN_SYNC]).get(MIN_IN_SYNC)
    except BrokerUnreachable:
        return ""
    in_sync = [(len(each.isr_nodes), len(each.replica_nodes)) for one in found for each in one.partitions]
    return too_few(topic, wanted, *min(in_sync)) if in_sync else ""


def too_few(topic: str, wanted: str | None, in_sync: int, replicas: int) -> str:
    """A sentence when acks=all needs more in-sync replicas than there are: `min.insync.replicas`, or all `replicas`
    where they are fewer; else ""."""
    if wanted is None or min(int(wanted), replicas) <= in_sync:
        return ""
    have = f"{in_sync} in-sync replica{'s' * (in_sync != 1)}"
    cure = f"`thermocline topic alter {topic} -c {MIN_IN_SYNC}={max(in_sync, 1)}`, or write with acks=1"
    return f"{topic} has {MIN_IN_SYNC}={wanted} and {have}, so writes with acks=all are refused; {cure}"
