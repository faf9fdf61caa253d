"""The Spark source's options: Spark's own names and rules, ours beside them, and errors that help."""

from __future__ import annotations

import pytest

from logformat.errors import InvalidRequest
from logformat.values import TopicPartition
from thermocline.pipeline.spark.options import KNOWN, ByOffset, ByTimestamp, Edge, parse_options

BASE = {"bucket": "file:///tmp/b", "subscribe": "orders"}


def with_options(**more: str) -> dict[str, str]:
    return {**BASE, **more}


def test_a_bucket_and_a_topic_are_enough() -> None:
    """Everything else has Spark's default: a batch reads all there is, a stream starts at the present."""
    options = parse_options(BASE)
    assert options.for_batch() == (Edge.EARLIEST, Edge.LATEST)
    assert options.for_stream() is Edge.LATEST
    assert options.fail_on_data_loss and not options.include_headers
    assert options.bootstrap_servers is None
    assert options.selection.wants("orders") and not options.selection.wants("orders2")


def test_names_are_case_insensitive() -> None:
    """Spark hands options over in lower case."""
    given = {
        "BUCKET": "file:///tmp/b",
        "subscribePATTERN": "a.*",
        "startingoffsets": "Latest",
        "includeheaders": "TRUE",
    }
    options = parse_options(given)
    assert options.selection.pattern == "a.*"
    assert options.starting is Edge.LATEST and options.include_headers


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("bukcet", "bucket"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka_bootstrap_servers", "kafka.bootstrap.servers"),
        ("targetPartitionSize", "targetPartitionBytes"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest_name(wrong: str, near: str) -> None:
    """A typing mistake must not read as a default."""
    with pytest.raises(InvalidRequest, match=f"did you mean '{near}'"):
        parse_options(with_options(**{wrong: "1"}))


@pytest.mark.parametrize("name", sorted(set(KNOWN) - {"assign", "subscribePattern"}))
def test_every_known_name_is_taken(name: str) -> None:
    """No name of the list is refused as unknown: with a value that is no option's, the message is about the value."""
    try:
        parse_options(with_options(**{name: "?!"}))
    except InvalidRequest as error:
        assert "unknown" not in str(error)


@pytest.mark.parametrize(
    "given",
    [
        {"bucket": "file:///tmp/b"},
        with_options(subscribePattern="o.*"),
        with_options(assign='{"orders":[0]}'),
    ],
)
def test_exactly_one_way_to_say_what_is_read(given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="exactly one of the options assign, subscribe, subscribePattern"):
        parse_options(given)


def test_the_three_ways_to_say_what_is_read() -> None:
    """assign names partitions, subscribe topics, and a pattern must match the whole name, as in Kafka."""
    bucket = {"bucket": "file:///tmp/b"}
    assigned = parse_options({**bucket, "assign": '{"a":[0,2],"b":[1]}'}).selection
    assert assigned.assign == {TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)}
    assert assigned.named == {"a", "b"} and assigned.wants("b") and not assigned.wants("c")
    assert parse_options({**bucket, "subscribe": " a , b"}).selection.subscribe == {"a", "b"}
    pattern = parse_options({**bucket, "subscribePattern": "ord.rs"}).selection
    assert pattern.wants("orders") and not pattern.wants("orders-2") and pattern.named is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"assign": "[0]"}, "not a JSON object"),
        ({"assign": '{"a":0}'}, "list of partitions"),
        ({"assign": "{}"}, "no partition"),
        ({"assign": '{"a":[-1]}'}, "whole number"),
        ({"subscribe": "a,b c"}, "not a topic name"),
        ({"subscribe": ","}, "not a topic name"),
        ({"subscribePattern": "a("}, "regular expression"),
        ({"subscribe": "a", "startingOffsets": "erliest"}, "neither earliest"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "whole number from -2"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"x":3}}'}, "not a partition of a"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":true}}'}, "whole number"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "whole number from 0"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "failOnDataLoss": "yes"}, "true, false"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "earliest"}, "error, latest"),
        ({"subscribe": "a", "maxTriggerDelay": "1 fortnight"}, "duration"),
        ({"subscribe": "a", "targetPartitionBytes": "0"}, "size"),
        ({"subscribe": "a", "path": "/tmp"}, "option bucket"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"subscribe": "a", "isolation.level": "serializable"}, "read_committed"),
        ({"subscribe": "a", "kafka.security.protocol": "SSL"}, "kafka.bootstrap.servers"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_options({"bucket": "file:///tmp/b", **given})


def test_a_bucket_is_asked_for_and_its_url_is_checked() -> None:
    with pytest.raises(InvalidRequest, match="bucket is missing"):
        parse_options({"subscribe": "a"})
    with pytest.raises(InvalidRequest, match="bucket URL"):
        parse_options({"subscribe": "a", "bucket": "/tmp/b"})


def test_times_go_before_offsets_as_in_spark() -> None:
    """startingTimestamp, then startingOffsetsByTimestamp, then startingOffsets."""
    both = with_options(startingOffsets="earliest", startingOffsetsByTimestamp='{"orders":{"0":5}}')
    assert parse_options(both).starting == ByTimestamp(
        "startingOffsetsByTimestamp", None, {TopicPartition("orders", 0): 5}
    )
    all_three = {**both, "startingTimestamp": "7"}
    assert parse_options(all_three).starting == ByTimestamp("startingTimestamp", 7)
    assert parse_options(with_options(endingTimestamp="9")).ending == ByTimestamp("endingTimestamp", 9)


def test_offsets_by_partition() -> None:
    options = parse_options(with_options(startingOffsets='{"orders":{"0":23,"1":-2}}'))
    assert options.starting == ByOffset(
        "startingOffsets", {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2}
    )


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"orders":{"0":-2}}'},
    ],
)
def test_what_only_a_stream_can_mean_is_refused_in_a_batch(given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="a batch cannot"):
        parse_options(with_options(**given)).for_batch()


def test_what_only_a_stream_uses_is_told_in_a_batch() -> None:
    """Spark's source ignores it too; we say so."""
    options = parse_options(with_options(maxOffsetsPerTrigger="10", minPartitions="2"))
    assert options.without_effect == ("maxOffsetsPerTrigger",)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidRequest, match="availableNow"):
        parse_options(with_options(endingOffsets="latest")).for_stream()


def test_sizes_durations_and_the_consumers_options() -> None:
    options = parse_options(
        with_options(
            **{
                "targetPartitionBytes": "64MiB",
                "maxTriggerDelay": "90s",
                "kafka.bootstrap.servers": "h:1",
                "kafka.security.protocol": "SSL",
                "pushFilters": "false",
            }
        )
    )
    assert options.target_partition_bytes == 64 << 20
    assert options.max_trigger_delay_ms == 90_000
    assert options.bootstrap_servers == "h:1" and options.consumer == {"security.protocol": "SSL"}
    assert options.push_filters is False
    assert parse_options(BASE).push_filters is None


def test_nothing_is_taken_for_granted_of_late_records() -> None:
    """`lateMs` unset prunes nothing by an upper bound of time; 0 is a value of its own, and means in order."""
    assert parse_options(BASE).late_ms is None
    assert parse_options(with_options(lateMs="0")).late_ms == 0
    assert parse_options(with_options(latems="300000")).late_ms == 300_000
    with pytest.raises(InvalidRequest, match="option lateMs"):
        parse_options(with_options(lateMs="-1"))
