"""A confirmation counts for the topic that it was given for, not for the next one of its name."""

from __future__ import annotations

import argparse
from typing import Any
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.wire.messages import MetadataResponse, MetadataResponseTopic
from thermocline.cli.clients import stock
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.cli.tier.reader import TierReader
from thermocline.cli.tier.status import StatusRow
from thermocline.cli.topic import changes, same_topic, trim


class Brokers:
    """One topic; `deleted` has what the admin client was asked to delete."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_another: bool) -> None:
        self.topic_id = UUID(int=1)
        self.error = ErrorCode.NONE
        self.deleted: list[object] = []
        self._is_another = is_another
        monkeypatch.setattr(same_topic, "connect", lambda _: self)
        monkeypatch.setattr(same_topic, "confirm", self._confirm)
        monkeypatch.setattr(stock, "connected_admin", lambda _: self)
        monkeypatch.setattr(TierReader, "read", lambda _: [StatusRow("t", 0, 1, 0, 0, 0, 20, 20)])
        for module in (changes, trim):
            monkeypatch.setattr(module, "can_ask", lambda: True)

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def metadata(self, topics: list[str]) -> MetadataResponse:
        assert topics == ["t"]
        found = MetadataResponseTopic(error_code=self.error, name="t", topic_id=self.topic_id)
        return MetadataResponse(topics=[found])

    def delete_topics(self, topics: list[str], **_: object) -> dict[str, Any]:
        self.deleted += topics
        return {}

    def delete_records(self, places: list[object], **_: object) -> dict[object, Any]:
        self.deleted += places
        return {}

    def _confirm(self, question: str, name: str) -> None:
        assert name == "t" and name in question
        if self._is_another:
            self.topic_id = UUID(int=2)


COMMANDS = {
    "delete": (changes.delete_topic, {}),
    "trim": (trim.trim_topic, {"before": 10, "partition": None}),
}


@pytest.mark.parametrize("is_another", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_another_topic_of_the_name_keeps_its_records(
    command: str, monkeypatch: pytest.MonkeyPatch, *, is_another: bool
) -> None:
    """Regression: somebody deleted the topic and created it again while the question waited for its answer. The new
    topic was deleted, or lost its records below the offset of the old one."""
    brokers, (run, options) = Brokers(monkeypatch, is_another=is_another), COMMANDS[command]
    arguments = argparse.Namespace(topic="t", bootstrap_server="h:1", yes=False, **options)
    if not is_another:
        run(arguments)
        assert len(brokers.deleted) == 1
        return
    with pytest.raises(CommandFailed, match="deleted and created again"):
        run(arguments)
    assert not brokers.deleted


def test_nobody_is_asked_about_a_topic_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, is_another=False)
    for error, words in (
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic t"),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "INVALID"),
    ):
        brokers.error = error
        with pytest.raises(CommandFailed, match=words):
            same_topic.topic_id_of("h:1", "t")
