"""Asks before records of a topic are deleted. The answer counts only for the topic that the question was about: another
topic may have its name by then, and requests name topics by their names."""

from __future__ import annotations

from uuid import UUID

from broker.error_codes import ErrorCode
from thermocline.cli.clients.connection_properties import no_topic
from thermocline.cli.clients.connections import connect
from thermocline.cli.terminal.confirm import confirm
from thermocline.cli.terminal.outcome import CommandFailed


def topic_id_of(bootstrap: str, topic: str) -> UUID:
    """Raises CommandFailed if there is no such topic."""
    with connect(bootstrap) as client:
        (found,) = client.metadata([topic]).topics
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise no_topic(topic)
    if found.error_code != ErrorCode.NONE:
        raise CommandFailed(f"topic {topic}: {ErrorCode(found.error_code).name}; see `thermocline topic list`")
    return found.topic_id


def confirm_for(topic_id: UUID, question: str, bootstrap: str, topic: str) -> None:
    """Ask. Raises CommandFailed unless the name is typed, and also if the topic of that name is not `topic_id` any
    more."""
    confirm(question, topic)
    if topic_id_of(bootstrap, topic) != topic_id:
        raise CommandFailed(
            f"{topic} was deleted and created again since the question, and this topic was not asked about: nothing "
            "was changed"
        )
