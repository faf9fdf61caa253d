"""Times and offsets as flags write them, and the plan of `topic trim`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from logformat.errors import InvalidRequest
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.cli.terminal.times import parse_time
from thermocline.cli.tier.status import StatusRow
from thermocline.cli.topic.sizes import TopicSize, sizes
from thermocline.cli.topic.trim import PartitionTrim, parse_before, plan

MIDNIGHT_MS = 1_793_491_200_000  # 2026-11-01T00:00Z


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # the rule itself: no zone files needed
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (f"@{MIDNIGHT_MS}", MIDNIGHT_MS),
        ("@0", 0),
        ("@2026-11-01T00:00Z", MIDNIGHT_MS),
        ("@2026-11-01Z", MIDNIGHT_MS),
        ("@2026-11-01T01:00+01:00", MIDNIGHT_MS),
        ("@2026-11-01+05:30", MIDNIGHT_MS - 19_800_000),
        ("@2026-10-31T19:00:00.250-05:00", MIDNIGHT_MS + 250),
        ("@2026-11-01 00:00Z", MIDNIGHT_MS),
    ],
)
def test_a_time_that_names_its_zone_needs_no_words(text: str, ms: int) -> None:
    """Milliseconds, UTC, offsets, fractions."""
    found = parse_time(text)
    assert (found.ms, found.meaning) == (ms, "")


@pytest.mark.usefixtures("berlin")
def test_a_time_without_a_zone_is_local_and_says_so() -> None:
    """In summer and in winter: 1 November is after the change."""
    winter, summer = parse_time("@2026-11-01T01:00"), parse_time("@2026-07-01")
    assert winter.ms == MIDNIGHT_MS
    assert "is local time, 2026-11-01T01:00:00+01:00 (CET)" in winter.meaning
    assert "is local time, 2026-07-01T00:00:00+02:00 (CEST)" in summer.meaning


def test_seconds_are_pointed_out() -> None:
    """`date +%s` gives ten digits: as milliseconds they are a day in 1970."""
    found = parse_time("@1793491200")
    assert found.ms == 1_793_491_200
    assert "1970-01-21" in found.meaning and "@1793491200000" in found.meaning


@pytest.mark.parametrize(
    "text",
    [
        "@", "@yesterday", "@2026-13-01", "@2026-02-30", "@-5", "@1e12", "@" + "9" * 5000, "@253402300800000",
        "@1969-12-31T23:59Z", "@0001-01-01", "@9999-12-31T23:00-12:00", "@٣٤", "2026-11-01", "@2026-11-01T25:00",
    ],
)  # fmt: skip
def test_what_is_no_time_says_what_to_write(text: str) -> None:
    """One line with an example."""
    try:
        found = parse_time(text)
    except InvalidRequest as refused:
        assert "\n" not in str(refused) and ("@2026-11-01T08:30" in str(refused) or "1970" in str(refused))
    else:  # the very edge of the calendar depends on the machine's zone; it must stay within what Kafka can carry
        assert text.startswith("@9999") and 0 <= found.ms < 2**63


@pytest.mark.parametrize("text", ["", "-1", "1.5", "9223372036854775808", "9" * 5000, "²", "end"])
def test_before_is_an_offset_or_a_time(text: str) -> None:
    """What neither is, is refused by name; the greatest offset is not."""
    with pytest.raises(ValueError, match="neither an offset nor a time"):
        parse_before(text)
    assert parse_before("9223372036854775807") == 2**63 - 1
    assert parse_before("@2026-11-01Z") == parse_time("@2026-11-01Z")


def row(partition: int, start: int | None, local: int | None, remote: int | None, end: int | None) -> StatusRow:
    return StatusRow(
        "t",
        partition,
        log_start_offset=start,
        local_log_start_offset=local,
        remote_end_offset=remote,
        high_watermark=end,
    )


def test_a_plan_counts_offsets_in_each_tier() -> None:
    """All in the bucket, some on disk; only on disk; nothing to do; tiers that nobody told of."""
    found = [row(0, 10, 60, 80, 100), row(1, 0, 0, 0, 100), row(2, 70, 70, 70, 100), row(3, 0, None, None, 100)]
    assert plan("t", found, dict.fromkeys(range(4), 70)) == [
        PartitionTrim(0, 10, 70, on_disk=10, in_bucket=60),
        PartitionTrim(1, 0, 70, on_disk=70, in_bucket=0),
        PartitionTrim(3, 0, 70, on_disk=None, in_bucket=None),
    ]
    assert plan("t", found, {0: 90}) == [PartitionTrim(0, 10, 90, on_disk=30, in_bucket=70)]


def test_a_plan_never_goes_beyond_the_end() -> None:
    """Each partition that ends earlier is named, up to five; one without a leader too."""
    with pytest.raises(CommandFailed, match=r"t-1 ends at 5, before"):
        plan("t", [row(0, 0, 0, 0, 10), row(1, 0, 0, 0, 5)], {0: 10, 1: 10})
    with pytest.raises(CommandFailed, match=r"t-4 ends at 0 and 3 more, before"):
        plan("t", [row(n, 0, 0, 0, 0) for n in range(8)], dict.fromkeys(range(8), 1))
    with pytest.raises(CommandFailed, match="t-0 has no leader"):
        plan("t", [row(0, None, None, None, None)], {0: 1})


def test_a_topics_size_is_known_or_null() -> None:
    """The sum of all partitions, or nothing: the sum of some would look like a size."""
    topics = {"b": [0, 1], "a": [0], "c": []}
    local = {("b", 0): 5, ("b", 1): 7}
    assert sizes(topics, local, {("b", 0): 1, ("a", 0): 9}) == [
        TopicSize("a", 1, None, 9),
        TopicSize("b", 2, 12, None),
        TopicSize("c", 0, 0, 0),
    ]
