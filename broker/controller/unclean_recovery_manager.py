"""Asks replicas about their logs of leaderless partitions, and commits the new leaders (R20).

Every choice is decided again on the current image (`begin`). A broker that does not answer is asked again, and delays
the other brokers' recovery by at most `ANSWER_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import Final
from uuid import UUID

from broker.controller.commit_queue import CommitQueue
from broker.controller.unclean_recovery import (
    Candidate,
    CandidatesByQuestion,
    Question,
    UncleanRecovery,
    begin,
    questions_of,
)
from broker.error_codes import ErrorCode
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace, Node
from broker.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
)
from logformat.errors import ThermoclineError
from seams.world import World

log = logging.getLogger(__name__)

PURPOSE: Final = "candidates"
VERSION: Final = 4  # version of OffsetForLeaderEpoch
ANSWER_S: Final = 5.0
_QUESTIONS_MAX: Final = 1_000  # partitions in one request

Ask = Callable[[Node, OffsetForLeaderEpochRequest], Awaitable[OffsetForLeaderEpochResponse]]
"""Asks one broker, which may be this one. Raises ConnectionError, TimeoutError."""
Answer = tuple[Node, Question, Candidate | None]


class UncleanRecoveryManager:
    """The recovery of leaderless partitions, active only while the image names this broker as the controller.
    `session_s`: how long a broker may be silent."""

    def __init__(
        self, commit_queue: CommitQueue, metadata: MetadataCache, world: World, node_id: int, ask: Ask, session_s: float
    ) -> None:
        self._commit_queue = commit_queue
        self._metadata = metadata
        self._clock = world.clock
        self._beats = world.beats
        self._node_id = node_id
        self._send = ask
        self._session_s = session_s
        self._reported = ""

    async def keep(self) -> None:
        machine = UncleanRecovery(self._session_s)
        while True:
            await self._beats.wait()
            if not self._metadata.is_decided_by(self._node_id):
                machine = UncleanRecovery(self._session_s)
                continue
            machine.follow(self._metadata.image, self._clock.monotonic_s())
            for node, question, candidate in await self._ask_all(self._metadata.image, machine.questions()):
                machine.answered(node.node_id, node.broker_epoch, question, candidate)
            self._report_missing(machine)
            chosen = machine.choose(self._clock.monotonic_s())
            if not chosen:
                continue
            try:
                count = await self._commit_queue.decide(lambda image, chosen=chosen: begin(image, chosen))  # type: ignore[misc]
            except (ThermoclineError, OSError) as refused:
                log.warning("%d partitions wait for an unclean election: %s", len(chosen), refused)
            else:
                log.warning("unclean election of %d partitions: no replica has all acknowledged records", count)

    async def ask(self, image: ClusterImage, places: Iterable[LogPlace]) -> CandidatesByQuestion:
        """The current answers of replicas with a session about these partitions; replicas that did not answer in time
        are left out."""
        found: dict[Question, dict[tuple[int, int], Candidate]] = {}
        for node, question, candidate in await self._ask_all(image, questions_of(image, places)):
            if candidate is not None:
                found.setdefault(question, {})[node.node_id, node.broker_epoch] = candidate
        return found

    async def _ask_all(self, image: ClusterImage, wanted: dict[int, list[Question]]) -> list[Answer]:
        asking = [
            self._ask_one(image.nodes[node_id], questions[at : at + _QUESTIONS_MAX])
            for node_id, questions in wanted.items()
            for at in range(0, len(questions), _QUESTIONS_MAX)
        ]
        return [said for answers in await asyncio.gather(*asking) for said in answers]

    async def _ask_one(self, node: Node, questions: list[Question]) -> list[Answer]:
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._send(node, request_of(questions))
        except (ConnectionError, TimeoutError) as silent:
            log.info("broker %d did not report its logs of %d partitions: %s", node.node_id, len(questions), silent)
            return []
        by_place = {(question.topic, question.place[1]): question for question in questions}
        return [
            (node, question, _said(part))
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
            and (question := by_place.get((topic.topic, part.partition))) is not None
        ]

    def _report_missing(self, machine: UncleanRecovery) -> None:
        """Log once for which brokers the recovery waits."""
        missing = machine.missing()
        told = ", ".join(f"broker {node_id} ({count} partitions)" for node_id, count in sorted(missing.items()))
        if told and told != self._reported:
            log.error(
                "partitions without a leader wait for replicas that may hold more records, on %s: start these "
                "brokers, or give up a broker that never returns with `thermocline cluster forget`",
                told,
            )
        self._reported = told


def _said(part: OffsetForLeaderEpochResponsePartition) -> Candidate | None:
    is_failed = part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    return None if is_failed else Candidate(part.seen_epoch, part.high_watermark, part.usable_end)


def request_of(questions: list[Question]) -> OffsetForLeaderEpochRequest:
    """The request to one broker; `questions` are grouped by topic."""
    return OffsetForLeaderEpochRequest(
        of_candidates=True,
        topics=[
            OffsetForLeaderEpochRequestTopic(
                topic=name,
                topic_id=UUID(topic_id),
                partitions=[
                    OffsetForLeaderEpochRequestPartition(
                        partition=question.place[1],
                        current_leader_epoch=question.leader_epoch,
                        leader_epoch=question.leader_epoch,
                    )
                    for question in some
                ],
            )
            for (name, topic_id), some in groupby(questions, lambda question: (question.topic, question.place[0]))
        ],
    )
