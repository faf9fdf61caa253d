"""Conversations about groups that any broker can be asked, so that two can be compared word for word.

Owns what is said and how an answer is made comparable: ids that a broker invents are renamed in the order they appear,
times are left out. Always true: a conversation uses its own group ids and knows nothing of who answers.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from uuid import UUID

import msgspec

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from broker.wire.message import Message
from broker.wire.primitives import ZERO_UUID

TOPIC = "conversation"  # one partition, exists on every broker that is asked
JSON = dict[str, Any]


class Broker(Protocol):
    """Who is asked."""

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message: ...

    async def settle(self) -> None:
        """Until what was asked has reached the broker, parked or answered."""
        ...


class Talk:
    """Asks, and writes down the answers in the order they were asked for."""

    def __init__(self, broker: Broker, topic_id: UUID = ZERO_UUID) -> None:
        self._broker = broker
        self.topic_id = topic_id  # of TOPIC, which every broker makes up for itself
        self._names: dict[str, str] = {}
        self.log: list[tuple[str, JSON]] = []

    async def ask(self, label: str, api: ApiKey, version: int, request: Message) -> Any:
        return await self.answer(label, self.park(api, version, request))

    def park(self, api: ApiKey, version: int, request: Message) -> asyncio.Task[Message]:
        """Ask without waiting for the answer."""
        return asyncio.get_running_loop().create_task(self._broker.ask(api, version, request))  # type: ignore[arg-type]

    async def settle(self) -> None:
        await self._broker.settle()

    async def answer(self, label: str, asked: Awaitable[Message]) -> Any:
        response = await asked
        self.log.append((label, self._comparable(msgspec.to_builtins(response))))
        return response

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, dict):
            kept = {key: self._named(key, part) for key, part in value.items() if key != "throttle_time_ms"}
            return kept if "port" not in kept else {**kept, "host": "?", "port": "?", "node_id": "?"}
        if isinstance(value, list):
            parts = [self._comparable(part) for part in value]
            # The order of a leader's member list means nothing; Kafka's is that of a hash table.
            return (
                sorted(parts, key=lambda p: p["member_id"])
                if parts and isinstance(parts[0], dict) and "member_id" in parts[0]
                else parts
            )
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    def _named(self, key: str, part: Any) -> Any:
        if key in ("member_id", "leader") and len(part) > 36:
            return self._names.setdefault(part, f"member {len(self._names) + 1}")
        if key == "topic_id" and part == str(self.topic_id):
            return "the topic's"
        return self._comparable(part)


def subscription(*topics: str) -> bytes:
    out = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    return out + b"\xff\xff\xff\xff"


def join(group: str, member: str = "", *, instance: str | None = None, metadata: bytes = b"", **more: Any) -> Message:
    names = more.pop("names", ("range",))
    protocols = [m.JoinGroupRequestProtocol(name=n, metadata=metadata or subscription(TOPIC)) for n in names]
    fields = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 5_000, "protocol_type": "consumer", **more}
    return m.JoinGroupRequest(
        group_id=group, member_id=member, group_instance_id=instance, protocols=protocols, **fields
    )


def sync(group: str, member: str, generation: int, *given: tuple[str, bytes], **more: Any) -> Message:
    rows = [m.SyncGroupRequestAssignment(member_id=i, assignment=a) for i, a in given]
    fields = {"protocol_type": "consumer", "protocol_name": "range", **more}
    return m.SyncGroupRequest(group_id=group, member_id=member, generation_id=generation, assignments=rows, **fields)


def heartbeat(group: str, member: str, generation: int, instance: str | None = None) -> Message:
    return m.HeartbeatRequest(group_id=group, member_id=member, generation_id=generation, group_instance_id=instance)


def leave(group: str, *members: tuple[str, str | None]) -> Message:
    rows = [m.LeaveGroupRequestMember(member_id=i, group_instance_id=s) for i, s in members]
    return m.LeaveGroupRequest(group_id=group, member_id=members[0][0], members=rows)


def commit(
    group: str, offset: int, member: str = "", generation: int = -1, *, instance: str | None = None, **more: Any
) -> Message:
    topic, partition = more.pop("topic", TOPIC), more.pop("partition", 0)
    row = m.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=more.pop("metadata", "")
    )
    return m.OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=generation,
        group_instance_id=instance,
        topics=[m.OffsetCommitRequestTopic(name=topic, partitions=[row])],
        **more,
    )


def fetch(group: str, *partitions: int, version: int, everything: bool = False) -> Message:
    indexes = list(partitions or (0,))
    if version >= 8:
        topics = None if everything else [m.OffsetFetchRequestGroupTopic(name=TOPIC, partition_indexes=indexes)]
        return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group, topics=topics)])
    old = None if everything else [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=indexes)]
    return m.OffsetFetchRequest(group_id=group, topics=old)


J, S, H, L = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP
C, F, FIND = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR


async def find(talk: Talk) -> None:
    for version in (0, 1, 2, 3):
        await talk.ask(f"find v{version}", FIND, version, m.FindCoordinatorRequest(key="g"))
    await talk.ask("find v4", FIND, 4, m.FindCoordinatorRequest(coordinator_keys=["g", "", "h"]))
    await talk.ask("find nothing", FIND, 4, m.FindCoordinatorRequest())
    await talk.ask("find an unknown kind", FIND, 3, m.FindCoordinatorRequest(key="g", key_type=7))


async def oldest_versions(talk: Talk) -> None:
    g = "oldest"
    joined = await talk.ask("join v0", J, 0, join(g))
    me, generation = joined.member_id, joined.generation_id
    await talk.ask("sync v0", S, 0, sync(g, me, generation, (me, b"all")))
    await talk.ask("heartbeat v0", H, 0, heartbeat(g, me, generation))
    await talk.ask("commit v2", C, 2, commit(g, 3, me, generation, metadata="m", retention_time_ms=3_600_000))
    await talk.ask("fetch v1", F, 1, fetch(g, 0, 1, version=1))
    await talk.ask("leave v0", L, 0, leave(g, (me, None)))
    await talk.ask("leave v0 again", L, 0, leave(g, (me, None)))
    await talk.ask("heartbeat after leaving", H, 0, heartbeat(g, me, generation))
    await talk.ask("sync after leaving", S, 0, sync(g, me, generation))
    await talk.ask("commit after leaving", C, 2, commit(g, 4, me, generation))
    await talk.ask("join again", J, 0, join(g))


async def newest_versions(talk: Talk) -> None:
    g = "newest"
    me = (await talk.ask("join without id", J, 9, join(g))).member_id
    joined = await talk.ask("join with the id", J, 9, join(g, me, names=("range", "sticky")))
    generation = joined.generation_id
    await talk.ask("commit before sync", C, 9, commit(g, 1, me, generation))
    await talk.ask("heartbeat before sync", H, 4, heartbeat(g, me, generation))
    await talk.ask("sync without protocol", S, 5, sync(g, me, generation, protocol_name=None))
    await talk.ask("sync with another protocol", S, 5, sync(g, me, generation, protocol_name="sticky"))
    await talk.ask("sync with another type", S, 5, sync(g, me, generation, protocol_type="connect"))
    await talk.ask("sync of a stranger", S, 5, sync(g, "stranger", generation))
    await talk.ask("sync of a stranger's instance", S, 5, sync(g, me, generation, group_instance_id="nobody"))
    await talk.ask("sync of another generation", S, 5, sync(g, me, generation + 1))
    await talk.ask("sync", S, 5, sync(g, me, generation, (me, b"all"), ("stranger", b"ignored")))
    await talk.ask("sync again", S, 5, sync(g, me, generation))
    await talk.ask("heartbeat", H, 4, heartbeat(g, me, generation))
    await talk.ask("heartbeat of another generation", H, 4, heartbeat(g, me, generation - 1))
    await talk.ask("heartbeat of a stranger", H, 4, heartbeat(g, "stranger", generation))
    await talk.ask("commit", C, 9, commit(g, 5, me, generation, metadata="here"))
    await talk.ask("commit without metadata", C, 9, commit(g, 6, me, generation, metadata=None))
    await talk.ask("commit backwards", C, 9, commit(g, 2, me, generation))
    await talk.ask("commit of another generation", C, 9, commit(g, 9, me, generation - 1))
    await talk.ask("commit of a stranger", C, 9, commit(g, 9, "stranger", generation))
    await talk.ask("commit of nobody", C, 9, commit(g, 9))
    await talk.ask("commit of an instance", C, 9, commit(g, 9, me, generation, instance="nobody"))
    await talk.ask("fetch v9", F, 9, fetch(g, 0, 1, version=9))
    await talk.ask("fetch everything v9", F, 9, fetch(g, version=9, everything=True))
    await talk.ask("join in other words", J, 9, join(g, me, names=("nothing",)))
    await talk.ask("join as another type", J, 9, join(g, me, protocol_type="connect"))
    await talk.ask("leave v5", L, 5, leave(g, ("stranger", None), (me, None), ("", "nobody"), ("", None)))
    await talk.ask("leave an empty group", L, 5, leave(g, (me, None)))
    await talk.ask("commit of nobody when empty", C, 9, commit(g, 9))
    await talk.ask("fetch v7", F, 7, fetch(g, 0, version=7))


async def two_members(talk: Talk) -> None:
    g = "two"
    first = (await talk.ask("first joins", J, 5, join(g))).member_id
    await talk.ask("first joins with id", J, 5, join(g, first))
    await talk.ask("first syncs", S, 3, sync(g, first, 1, (first, b"all")))
    second = (await talk.ask("second joins", J, 5, join(g))).member_id
    parked = talk.park(J, 5, join(g, second))
    await talk.settle()
    await talk.ask("first hears of it", H, 3, heartbeat(g, first, 1))
    await talk.ask("first commits once more", C, 7, commit(g, 11, first, 1))
    await talk.ask("first syncs too late", S, 3, sync(g, first, 1))
    await talk.ask("first rejoins", J, 5, join(g, first))
    await talk.answer("second has joined", parked)
    await talk.ask("second repeats its join", J, 5, join(g, second))
    await talk.ask("first repeats its join", J, 5, join(g, first))
    parked = talk.park(S, 3, sync(g, second, 2))
    await talk.settle()
    await talk.ask("second commits early", C, 7, commit(g, 12, second, 2))
    await talk.ask("second commits for the last generation", C, 7, commit(g, 12, second, 1))
    await talk.ask("first assigns", S, 3, sync(g, first, 2, (first, b"a"), (second, b"b")))
    await talk.answer("second has its share", parked)
    await talk.ask("second joins, nothing new", J, 5, join(g, second))
    parked = talk.park(J, 5, join(g, second, metadata=b"new"))
    await talk.settle()
    await talk.ask("first hears of the change", H, 3, heartbeat(g, first, 2))
    await talk.ask("second leaves", L, 3, leave(g, (second, None)))
    await talk.answer("second's join has ended", parked)
    rejoined = await talk.ask("first rejoins alone", J, 5, join(g, first))
    await talk.ask("first assigns itself", S, 3, sync(g, first, rejoined.generation_id))
    parked = talk.park(J, 5, join(g, first))
    await talk.answer("the leader may ask for more", parked)


async def static_members(talk: Talk) -> None:
    g = "static"
    first = (await talk.ask("a static member needs no second ask", J, 9, join(g, instance="a"))).member_id
    await talk.ask("it syncs", S, 5, sync(g, first, 1, (first, b"all"), group_instance_id="a"))
    second = (await talk.ask("it is back, as leader", J, 9, join(g, instance="a"))).member_id
    await talk.ask("its old self beats", H, 4, heartbeat(g, first, 1, "a"))
    await talk.ask("its old self beats, nameless", H, 4, heartbeat(g, first, 1))
    await talk.ask("its old self syncs", S, 5, sync(g, first, 1, group_instance_id="a"))
    await talk.ask("its old self commits", C, 9, commit(g, 1, first, 1, instance="a"))
    await talk.ask("its old self joins", J, 9, join(g, first, instance="a"))
    await talk.ask("its old self leaves", L, 5, leave(g, (first, "a")))
    await talk.ask("its new self syncs", S, 5, sync(g, second, 1, group_instance_id="a"))
    await talk.ask("its new self commits", C, 9, commit(g, 1, second, 1, instance="a"))
    third = (await talk.ask("back again, in old words", J, 5, join(g, instance="a"))).member_id
    await talk.ask("and syncs", S, 3, sync(g, third, 1, group_instance_id="a"))
    changed = await talk.ask("back with other protocols", J, 9, join(g, instance="a", names=("sticky", "range")))
    fourth = changed.member_id
    await talk.ask("heartbeat", H, 4, heartbeat(g, fourth, changed.generation_id, "a"))
    await talk.ask("an administrator removes it", L, 5, leave(g, ("", "a")))
    await talk.ask("and again", L, 5, leave(g, ("", "a")))


async def refusals(talk: Talk) -> None:
    g = "refused"
    await talk.ask("too short a session", J, 9, join(g, session_timeout_ms=5_999))
    await talk.ask("too long a session", J, 9, join(g, session_timeout_ms=1_800_001))
    await talk.ask("no group", J, 9, join(""))
    await talk.ask("no group to sync", S, 5, sync("", "m", 1))
    await talk.ask("no group to beat", H, 4, heartbeat("", "m", 1))
    await talk.ask("no group to leave", L, 5, leave("", ("m", None)))
    await talk.ask("no protocols", J, 9, join(g, names=()))
    await talk.ask("no protocol type", J, 9, join(g, protocol_type=""))
    await talk.ask("an id nobody gave", J, 9, join(g, "me"))
    await talk.ask("an id and an instance nobody gave", J, 9, join(g, "me", instance="i"))
    await talk.ask("sync of no group", S, 5, sync("none", "m", 1))
    await talk.ask("heartbeat of no group", H, 4, heartbeat("none", "m", 1))
    await talk.ask("leave of no group", L, 5, leave("none", ("m", None), ("n", "i")))
    await talk.ask("leave of no group v1", L, 1, leave("none", ("m", None)))
    await talk.ask("commit of no group v8", C, 8, commit("none", 1, "m", 1))
    await talk.ask("commit of no group v9", C, 9, commit("none", 1, "m", 1))
    for version in (1, 2, 7, 8, 9):
        await talk.ask(f"fetch of no group v{version}", F, version, fetch("none", 0, 5, version=version))
    for version in (2, 8):
        await talk.ask(
            f"fetch everything of no group v{version}", F, version, fetch("none", version=version, everything=True)
        )


async def outside_group_management(talk: Talk) -> None:
    g = "simple"
    await talk.ask("commit", C, 8, commit(g, 7, metadata="x"))
    await talk.ask("commit v4 with a retention", C, 4, commit(g, 8, retention_time_ms=60_000))
    await talk.ask("commit with an id", C, 8, commit(g, 9, "me"))
    await talk.ask("commit with a generation", C, 8, commit(g, 9, "me", 0))
    await talk.ask("commit −1", C, 8, commit(g, -1))
    await talk.ask("too much metadata", C, 8, commit(g, 9, metadata="m" * 4_097))
    await talk.ask("just enough metadata", C, 8, commit(g, 10, metadata="ü" * 4_096))
    await talk.ask("an unknown topic", C, 8, commit(g, 9, topic="no-such-topic"))
    await talk.ask("an unknown partition", C, 8, commit(g, 9, partition=99))
    await talk.ask("fetch", F, 7, fetch(g, 0, 99, 1, version=7))
    await talk.ask("fetch everything", F, 2, fetch(g, version=2, everything=True))
    await talk.ask("the group without a name", C, 8, commit("", 1))
    await talk.ask("fetch of the group without a name", F, 5, fetch("", version=5))
    joined = await talk.ask("somebody joins", J, 2, join(g))
    await talk.ask("commit beside a member", C, 8, commit(g, 11))
    await talk.ask("it leaves", L, 1, leave(g, (joined.member_id, None)))
    await talk.ask("commit after it", C, 8, commit(g, 12))


Conversations = dict[str, Callable[[Talk], Awaitable[None]]]

CONVERSATIONS: Conversations = {
    f.__name__: f
    for f in (
        find,
        oldest_versions,
        newest_versions,
        two_members,
        static_members,
        refusals,
        outside_group_management,
    )
}
