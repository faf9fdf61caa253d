"""`tier seal --wait` says that everything is in the bucket only if it is, whoever leads meanwhile."""

from __future__ import annotations

import pytest

from thermocline.cli.clients.http_client import HttpAddress
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.tier import seal
from thermocline.cli.tier.reader import TierReader
from thermocline.cli.tier.status import StatusRow

BEFORE = StatusRow("t", 0, leader=2, log_start_offset=0, remote_end_offset=0, high_watermark=20)


def sealed(monkeypatch: pytest.MonkeyPatch, after: StatusRow, before: StatusRow = BEFORE) -> int:
    """The exit code, when both brokers answer that all they led is in the bucket."""
    reads = iter([[before], [after]])
    monkeypatch.setattr(TierReader, "read", lambda _: next(reads))
    brokers = {node_id: HttpAddress("h", node_id, False) for node_id in (1, 2)}
    monkeypatch.setattr(seal, "http_addresses", lambda _: brokers)
    monkeypatch.setattr(seal, "post_json", lambda *_: b'{"sealed": true, "done": true}')
    return seal.seal("h:1", None, wait=True)


def test_a_partition_that_changed_its_leader_between_the_answers_is_not_called_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: broker 1 led nothing when it answered. It led the partition before broker 2 answered. Nobody had
    sealed the partition, and the command said that everything is in the bucket."""
    with pytest.raises(CommandFailed, match="not all of t-0 is in the bucket"):
        sealed(monkeypatch, StatusRow("t", 0, 1, 0, remote_end_offset=0, high_watermark=20))


def test_a_leader_that_does_not_answer_is_not_called_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match="not all of t-0 is in the bucket"):
        sealed(monkeypatch, StatusRow("t", 0, 1), StatusRow("t", 0, 1))


@pytest.mark.parametrize(
    "after",
    [
        StatusRow("t", 0, 1, 0, remote_end_offset=20, high_watermark=30),
        StatusRow("t", 0, 1, 20, remote_end_offset=0, high_watermark=30),
        StatusRow("made meanwhile", 0, 1, 0, remote_end_offset=0, high_watermark=30),
    ],
    ids=["written since", "deleted", "another topic"],
)
def test_later_records_and_deleted_ones_need_not_be_in_the_bucket(
    after: StatusRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sealed(monkeypatch, after) == Exit.DONE
