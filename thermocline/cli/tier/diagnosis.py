"""Explains a client's timeout by the state of the broker and the topic's configs.

If the broker cannot be asked, the explanation is left out and the command continues.
"""

from __future__ import annotations

from thermocline.cli.terminal.outcome import CommandFailed

MIN_IN_SYNC = "min.insync.replicas"


def broker_reason(bootstrap: str, topic: str) -> str:
    """`; ` and a reason: from the state of a Thermocline broker and the topic, or why the broker could not be asked. ""
    if there is none.
    """
    from thermocline.cli.clients.wire_client import BrokerUnreachable
    from thermocline.cli.tier.reader import TierReader

    source = TierReader(bootstrap, topic, None)
    try:
        blocked = sorted({row.blocked_by for row in source.read() if row.blocked_by})
    except (CommandFailed, BrokerUnreachable) as failed:
        return f": {failed}"
    reasons = source.conditions()
    if blocked and not reasons:
        reasons = [f"{topic} is blocked by {', '.join(blocked)}; see `thermocline tier status`"]
    return "".join(f"; {line}" for line in (*reasons, *source.unknown()))


def unmet_replicas(bootstrap: str, topic: str) -> str:
    """A sentence if a partition has fewer in-sync replicas than acks=all needs: clients then retry until they time out,
    without a message. Otherwise "", also if the broker does not answer.
    """
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
    """A sentence if acks=all needs more in-sync replicas (the smaller of `min.insync.replicas` and `replicas`) than
    there are; otherwise "".
    """
    if wanted is None or min(int(wanted), replicas) <= in_sync:
        return ""
    have = f"{in_sync} in-sync replica{'s' * (in_sync != 1)}"
    cure = f"`thermocline topic alter {topic} -c {MIN_IN_SYNC}={max(in_sync, 1)}`, or write with acks=1"
    return f"{topic} has {MIN_IN_SYNC}={wanted} and {have}, so writes with acks=all are refused; {cure}"
