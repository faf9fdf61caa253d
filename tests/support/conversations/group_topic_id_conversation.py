"""Conversations about committed offsets in which topics are named by their ids (OffsetCommit 10, OffsetFetch 10)."""

from __future__ import annotations

from uuid import UUID

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from broker.wire.message import Message
from tests.support.conversations.group_conversation import Conversations, Talk, commit, fetch, join, sync

J, S, C, F = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH
UNKNOWN, ZERO = UUID("01234567-89ab-4def-8123-456789abcdef"), UUID(int=0)


def commit_by_id(group: str, *places: tuple[UUID, int, int], member: str = "", generation: int = -1) -> Message:
    """(topic id, partition, offset) each."""
    return m.OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=generation,
        topics=[
            m.OffsetCommitRequestTopic(
                topic_id=topic_id,
                partitions=[
                    m.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
            for topic_id, partition, offset in places
        ],
    )


def fetch_by_id(group: str, *places: tuple[UUID, int], everything: bool = False) -> Message:
    topics = [m.OffsetFetchRequestGroupTopic(topic_id=topic_id, partition_indexes=[p]) for topic_id, p in places]
    return m.OffsetFetchRequest(
        groups=[m.OffsetFetchRequestGroup(group_id=group, topics=None if everything else topics)]
    )


async def topic_ids(talk: Talk) -> None:
    g, topic = "by-id", talk.topic_id
    await talk.ask("commit", C, 10, commit_by_id(g, (topic, 0, 5)))
    await talk.ask("commit to strangers", C, 10, commit_by_id(g, (UNKNOWN, 0, 5), (topic, 0, 6)))
    await talk.ask("commit to no topic", C, 10, commit_by_id(g, (ZERO, 0, 5), (topic, 0, 7)))
    await talk.ask("commit to no partition", C, 10, commit_by_id(g, (topic, 9, 5)))
    await talk.ask("commit nothing", C, 10, commit_by_id(g))
    await talk.ask("fetch", F, 10, fetch_by_id(g, (topic, 0)))
    await talk.ask("fetch no partition", F, 10, fetch_by_id(g, (topic, 9)))
    await talk.ask("fetch of strangers", F, 10, fetch_by_id(g, (UNKNOWN, 0), (topic, 0)))
    await talk.ask("fetch of no topic", F, 10, fetch_by_id(g, (ZERO, 0)))
    await talk.ask("fetch everything", F, 10, fetch_by_id(g, everything=True))
    await talk.ask("fetch everything of nobody", F, 10, fetch_by_id("nobody", everything=True))
    await talk.ask("fetch of nobody", F, 10, fetch_by_id("nobody", (topic, 0), (UNKNOWN, 0)))
    await talk.ask("fetch by name", F, 9, fetch(g, 0, version=9))
    await talk.ask("commit by name", C, 9, commit(g, 9))
    await talk.ask("fetch what was committed by name", F, 10, fetch_by_id(g, (topic, 0)))
    joined = await talk.ask("join", J, 3, join(g))
    await talk.ask("sync", S, 3, sync(g, joined.member_id, 1, (joined.member_id, b"")))
    mine = {"member": joined.member_id, "generation": 1}
    await talk.ask("commit of a member", C, 10, commit_by_id(g, (UNKNOWN, 0, 5), (topic, 0, 11), **mine))
    await talk.ask("commit of a stranger", C, 10, commit_by_id(g, (UNKNOWN, 0, 5), (topic, 0, 12)))
    other = {"member": joined.member_id, "generation": 7}
    await talk.ask("commit of another generation", C, 10, commit_by_id(g, (topic, 0, 12), **other))
    await talk.ask("commit of no group", C, 10, commit_by_id("none", (topic, 0, 12), **mine))


TOPIC_ID_CONVERSATIONS: Conversations = {topic_ids.__name__: topic_ids}
