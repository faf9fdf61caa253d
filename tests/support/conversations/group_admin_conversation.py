"""Conversations of administrators about groups, to be compared word for word between two brokers.

As `group_conversation`, whose members and commits make the groups that are asked about here; ListGroups shows the
groups of a conversation only, in the order of their ids, because what other groups a broker has is its own business.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from broker.wire.message import Message
from tests.support.conversations.group_conversation import (
    TOPIC,
    Conversations,
    Talk,
    commit,
    fetch,
    join,
    leave,
    subscription,
    sync,
)

LIST, DESCRIBE, DELETE, FORGET = (
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)
J, S, L, C, F = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
)


def describe(*groups: str, authorized: bool = False) -> Message:
    return m.DescribeGroupsRequest(groups=list(groups), include_authorized_operations=authorized)


def forget(group: str, *places: tuple[str, int]) -> Message:
    indexes: dict[str, list[int]] = {}
    for topic, partition in places:
        indexes.setdefault(topic, []).append(partition)
    topics = [
        m.OffsetDeleteRequestTopic(
            name=topic, partitions=[m.OffsetDeleteRequestPartition(partition_index=index) for index in wanted]
        )
        for topic, wanted in indexes.items()
    ]
    return m.OffsetDeleteRequest(group_id=group, topics=topics)


async def own(asked: Awaitable[Message], prefix: str) -> Message:
    """A ListGroups answer without the groups of others."""
    response: Any = await asked
    response.groups = sorted(
        (row for row in response.groups if row.group_id.startswith(prefix)), key=lambda r: r.group_id
    )
    return response


async def listed(
    talk: Talk, label: str, prefix: str, states: tuple[str, ...] = (), types: tuple[str, ...] = (), version: int = 5
) -> None:
    request = m.ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    await talk.answer(label, own(talk.park(LIST, version, request), prefix))


async def stages(talk: Talk) -> None:
    """A group from its first member to its deletion, asked about in every state."""
    g = "stages"
    for version in (0, 1, 4, 5, 6):
        await talk.ask(f"describe before there is one v{version}", DESCRIBE, version, describe(g))
    me = (await talk.ask("join without id", J, 9, join(g))).member_id
    await talk.ask("describe with an id handed out", DESCRIBE, 6, describe(g))
    await listed(talk, "list with an id handed out", g)
    await talk.ask("join with the id", J, 9, join(g, me, names=("range", "sticky")))
    await talk.ask("describe while completing", DESCRIBE, 6, describe(g))
    await listed(talk, "list while completing", g)
    await talk.ask("sync", S, 5, sync(g, me, 1, (me, b"all of it")))
    for version in range(7):
        authorized = version >= 3
        await talk.ask(f"describe v{version}", DESCRIBE, version, describe(g, authorized=authorized))
    for version in range(6):
        await listed(talk, f"list v{version}", g, version=version)
    for states in (("Stable",), ("sTABLE",), ("Empty", "Stable"), ("Empty",), ("nonsense",), ("",), ("Dead",)):
        await listed(talk, f"list in {states}", g, states)
    for types in (("classic",), ("CLASSIC",), ("consumer",), ("share", "classic"), ("nonsense",)):
        await listed(talk, f"list of {types}", g, (), types)
    await listed(talk, "list stable and classic", g, ("stable",), ("classic",))
    await talk.ask("commit", C, 8, commit(g, 5, me, 1))
    await talk.ask("forget what is read", FORGET, 0, forget(g, (TOPIC, 9), (TOPIC, 0), ("no-such-topic", 0)))
    await talk.ask("delete while it is read", DELETE, 2, m.DeleteGroupsRequest(groups_names=[g]))
    second = (await talk.ask("another joins", J, 9, join(g))).member_id
    parked = talk.park(J, 9, join(g, second))
    await talk.settle()
    await talk.ask("describe while preparing", DESCRIBE, 6, describe(g))
    await listed(talk, "list while preparing", g)
    await listed(talk, "list those that prepare", g, ("PreparingRebalance",))
    await talk.ask("forget while preparing", FORGET, 0, forget(g, (TOPIC, 0)))
    await talk.ask("delete while preparing", DELETE, 2, m.DeleteGroupsRequest(groups_names=[g]))
    await talk.ask("the first leaves", L, 5, leave(g, (me, None)))
    await talk.answer("the other has joined", parked)
    await talk.ask("the other leaves", L, 5, leave(g, (second, None)))
    await talk.ask("describe when empty", DESCRIBE, 6, describe(g, authorized=True))
    await talk.ask("describe when empty v0", DESCRIBE, 0, describe(g))
    await listed(talk, "list when empty", g)
    await listed(talk, "list when empty v3", g, version=3)
    await talk.ask("the position is still there", F, 7, fetch(g, version=7))
    await talk.ask("delete", DELETE, 2, m.DeleteGroupsRequest(groups_names=[g]))
    await talk.ask("the position is gone", F, 7, fetch(g, version=7))
    await talk.ask("describe after it v5", DESCRIBE, 5, describe(g))
    await talk.ask("describe after it v6", DESCRIBE, 6, describe(g))
    await listed(talk, "list after it", g)
    await talk.ask("delete again", DELETE, 2, m.DeleteGroupsRequest(groups_names=[g]))
    await talk.ask("it begins anew", J, 2, join(g))


async def members_told(talk: Talk) -> None:
    """Static members, client ids, and bytes that mean nothing to a broker."""
    g = "told"
    first = await talk.ask("static", J, 9, join(g, instance="a", metadata=b"new"))
    await talk.ask(
        "syncs", S, 5, sync(g, first.member_id, 1, (first.member_id, bytes(range(256))), group_instance_id="a")
    )
    for version in (3, 4, 6):
        await talk.ask(f"describe v{version}", DESCRIBE, version, describe(g))
    await talk.ask("what such a group reads is not known", FORGET, 0, forget(g, (TOPIC, 0)))
    await talk.ask("leaves", L, 5, leave(g, ("", "a")))


async def other_protocols(talk: Talk) -> None:
    """Groups that are not of consumers, as of Kafka Connect's workers."""
    g = "workers"
    me = (await talk.ask("join", J, 2, join(g, protocol_type="connect", names=("sessioned",)))).member_id
    await talk.ask("sync", S, 2, sync(g, me, 1, (me, b"tasks")))
    await talk.ask("commit", C, 8, commit(g, 5, me, 1))
    await talk.ask("describe", DESCRIBE, 6, describe(g))
    await listed(talk, "list", g)
    await talk.ask("forget", FORGET, 0, forget(g, (TOPIC, 0)))
    await talk.ask("leave", L, 1, leave(g, (me, None)))
    await talk.ask("describe when empty", DESCRIBE, 6, describe(g))
    await talk.ask("forget when empty", FORGET, 0, forget(g, (TOPIC, 0)))
    await talk.ask("fetch", F, 7, fetch(g, version=7))
    await talk.ask("delete", DELETE, 1, m.DeleteGroupsRequest(groups_names=[g]))


async def positions_only(talk: Talk) -> None:
    """A group without members, of commits from outside."""
    g = "only"
    await talk.ask("commit", C, 8, commit(g, 7, metadata="x"))
    await talk.ask("describe", DESCRIBE, 6, describe(g, authorized=True))
    await listed(talk, "list", g)
    await listed(talk, "list the empty ones", g, ("Empty",), ("Classic",))
    await talk.ask("forget others", FORGET, 0, forget(g, (TOPIC, 1), ("no-such-topic", 0)))
    await talk.ask("fetch", F, 7, fetch(g, version=7))
    await talk.ask("forget", FORGET, 0, forget(g, (TOPIC, 0)))
    await talk.ask("fetch after it", F, 7, fetch(g, version=7))
    await talk.ask("commit again", C, 8, commit(g, 7))
    await talk.ask("delete v0", DELETE, 0, m.DeleteGroupsRequest(groups_names=[g]))
    await talk.ask("fetch after the deletion", F, 7, fetch(g, version=7))
    await listed(talk, "list after the deletion", g)


async def subscribed(talk: Talk) -> None:
    """What a group reads is not forgotten; what it read once may be."""
    g = "subscribed"
    await talk.ask("commit from outside", C, 8, commit(g, 7))
    joined = await talk.ask("join for another topic", J, 2, join(g, metadata=subscription("elsewhere")))
    await talk.ask("forget while completing", FORGET, 0, forget(g, ("elsewhere", 0), (TOPIC, 0)))
    await talk.ask("fetch while completing", F, 7, fetch(g, version=7))
    await talk.ask("sync", S, 2, sync(g, joined.member_id, 1, (joined.member_id, b"")))
    await talk.ask("forget what is read", FORGET, 0, forget(g, ("elsewhere", 0)))
    await talk.ask("forget what was read once", FORGET, 0, forget(g, (TOPIC, 0)))
    await talk.ask("fetch", F, 7, fetch(g, version=7))
    await talk.ask("leave", L, 1, leave(g, (joined.member_id, None)))


async def admin_refusals(talk: Talk) -> None:
    await talk.park(DELETE, 2, m.DeleteGroupsRequest(groups_names=[""]))  # what another conversation left
    await talk.ask("describe nobody, authorized v5", DESCRIBE, 5, describe("never", authorized=True))
    await talk.ask("describe nobody, authorized v6", DESCRIBE, 6, describe("never", authorized=True))
    await talk.ask("describe the group without a name", DESCRIBE, 6, describe(""))
    await talk.ask("describe the group without a name v5", DESCRIBE, 5, describe(""))
    await talk.ask("describe nothing", DESCRIBE, 6, describe())
    await talk.ask("describe twice", DESCRIBE, 6, describe("never", "never"))
    await talk.ask("delete nothing", DELETE, 2, m.DeleteGroupsRequest())
    for names in (["never"], [""], ["nobody", "never"], ["never", "never"]):
        await talk.ask(f"delete {names}", DELETE, 2, m.DeleteGroupsRequest(groups_names=names))
    await talk.ask("forget of no group", FORGET, 0, forget("never", (TOPIC, 0)))
    await talk.ask("forget of the group without a name", FORGET, 0, forget("", (TOPIC, 0)))
    await talk.ask("forget nothing of no group", FORGET, 0, forget("never"))
    await talk.ask("commit of the group without a name", C, 8, commit("", 1))
    await talk.ask("forget of it", FORGET, 0, forget("", (TOPIC, 0)))
    await talk.ask("describe it", DESCRIBE, 6, describe(""))
    await talk.ask("delete it", DELETE, 2, m.DeleteGroupsRequest(groups_names=[""]))
    await talk.ask("commit to forget nothing", C, 8, commit("something", 1))
    await talk.ask("forget nothing", FORGET, 0, forget("something"))


ADMIN_CONVERSATIONS: Conversations = {
    f.__name__: f for f in (stages, members_told, other_protocols, positions_only, subscribed, admin_refusals)
}
