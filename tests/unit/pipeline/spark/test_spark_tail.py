"""The hot tail's reader against a scripted consumer, and how often a stream looks at its two tiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

from logformat.errors import InvalidRequest, Retryable
from logformat.values import TopicPartition
from thermocline.pipeline.rows import COLUMNS, schema_of
from thermocline.pipeline.spark.tail import ConsumerSettings, TailPart, _read, rows_of
from thermocline.pipeline.spark.tiers import COLD_S, DISCOVER_S, ENDS_S, MANIFESTS_S, Watch
from thermocline.pipeline.split import DataLoss, Loss, RowFilter

EOF = KafkaError._PARTITION_EOF


class Got:
    """A message, or an error at an offset."""

    def __init__(
        self, offset: int, error: int | None = None, time: tuple[int, int] = (TIMESTAMP_CREATE_TIME, 5)
    ) -> None:
        self._offset, self._error, self._time = offset, error, time

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def timestamp(self) -> tuple[int, int]:
        return self._time

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"v%d" % self._offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("h", None), ("h", b"x")] if self._offset % 2 else None


class Script:
    """Gives one list of messages a call, then nothing; `marks` are the log's first offset and its end."""

    def __init__(self, *answers: Sequence[Got], marks: tuple[int, int] | None = None) -> None:
        self.answers = list(answers)
        self.marks = marks
        self.asked: list[int] = []
        self.assigned: list[int] = []

    def consume(self, count: int, _timeout_s: float) -> Sequence[Got]:
        self.asked.append(count)
        return self.answers.pop(0) if self.answers else []

    def assign(self, places: Iterable[object]) -> None:
        self.assigned += [place.offset for place in places]  # type: ignore[attr-defined]

    def get_watermark_offsets(self, _place: object, _timeout_s: float) -> tuple[int, int] | None:
        return self.marks


def read(script: Script, start: int, end: int, *, strict: bool = True) -> tuple[list[int], Loss]:
    loss = Loss()
    part = TailPart("t", 0, RowFilter(start, end))
    batches = _read(script, 0.02, part, ("offset",), strict, loss)  # type: ignore[arg-type]
    return [offset for batch in batches for offset in batch.column(0).to_pylist()], loss


def test_exactly_the_offsets_asked_for() -> None:
    """What comes beyond the end is not taken, and no more is waited for than is missing."""
    script = Script([Got(3), Got(4)], [Got(5), Got(6), Got(7)])
    assert read(script, 3, 6) == ([3, 4, 5], Loss())
    assert script.asked == [3, 1]


def test_control_batches_at_the_end_are_passed() -> None:
    """No record comes for the last offsets; the end of the partition, or a later record, says that they were passed."""
    assert read(Script([Got(3), Got(9, EOF)]), 3, 6) == ([3], Loss(gaps=[("t", 0, 4, 6)]))
    assert read(Script([Got(3), Got(9)]), 3, 6) == ([3], Loss(gaps=[("t", 0, 4, 6)]))


def test_a_hole_in_the_middle_is_counted() -> None:
    assert read(Script([Got(3), Got(5)]), 3, 6) == ([3, 5], Loss(gaps=[("t", 0, 4, 5)]))


def test_an_offset_that_retention_took_is_loss() -> None:
    """It fails; on request the read goes on at the first offset there is, and says so."""
    with pytest.raises(DataLoss, match="no offset 3 any more"):
        read(Script([Got(3, KafkaError._AUTO_OFFSET_RESET)]), 3, 6)
    script = Script([Got(3, KafkaError._AUTO_OFFSET_RESET)], [Got(5)], marks=(5, 90))
    offsets, loss = read(script, 3, 6, strict=False)
    assert offsets == [5] and len(loss.damage) == 1 and script.assigned == [5]


def test_finding_7_after_a_reset_no_row_below_the_part_is_given() -> None:
    """The topic was made again, failOnDataLoss=false: what lies below the part belongs to none, or to another one."""
    reset = [Got(700, KafkaError._AUTO_OFFSET_RESET)]
    script = Script(reset, [Got(0), Got(1)], [Got(2), Got(700), Got(701), Got(702)], marks=(0, 900))
    offsets, loss = read(script, 700, 703, strict=False)
    assert offsets == [700, 701, 702] and script.assigned == [700] and len(loss.damage) == 1 and not loss.gaps


@pytest.mark.parametrize("marks", [(0, 3), (0, 700), (703, 900)])
def test_finding_7_a_part_of_which_nothing_is_left_ends_as_loss(marks: tuple[int, int]) -> None:
    """The log ends before the part, or begins behind it: nothing to wait for."""
    script = Script([Got(700, KafkaError._AUTO_OFFSET_RESET)], marks=marks)
    offsets, loss = read(script, 700, 703, strict=False)
    assert offsets == [] and script.assigned == [] and "none of this part" in loss.damage[0]


def test_a_cluster_that_does_not_say_what_it_holds_is_asked_again() -> None:
    """Spark runs the task anew."""
    with pytest.raises(Retryable, match="does not answer within 30 s"):
        read(Script([Got(3, KafkaError._AUTO_OFFSET_RESET)]), 3, 6, strict=False)


def test_silence_is_an_error_that_says_where_and_why() -> None:
    """The client goes on trying; when nothing moves for the time allowed, its last trouble is in the message."""
    with pytest.raises(Retryable, match=r"t-0 offsets 3–5: no progress from offset 4 .*_TRANSPORT"):
        read(Script([Got(3)], [Got(4, KafkaError._TRANSPORT)]), 3, 6)


def test_a_refusal_ends_the_read_at_once() -> None:
    with pytest.raises(Retryable, match="refuses the read at offset 3: TOPIC_AUTHORIZATION_FAILED"):
        read(Script([Got(3, KafkaError.TOPIC_AUTHORIZATION_FAILED)]), 3, 6)


def test_rows_have_the_schema_of_the_bucket() -> None:
    """Every column; no headers is null, a timestamp that is not there is null."""
    times = [(TIMESTAMP_CREATE_TIME, 7), (TIMESTAMP_LOG_APPEND_TIME, 8), (TIMESTAMP_NOT_AVAILABLE, -1)]
    found = rows_of([Got(n, time=time) for n, time in enumerate(times)], RowFilter(0, 9), COLUMNS)  # type: ignore[misc]
    assert found.schema.equals(schema_of(COLUMNS))
    assert found.column(COLUMNS.index("headers")).to_pylist() == [
        None,
        [{"key": "h", "value": None}, {"key": "h", "value": b"x"}],
        None,
    ]
    assert found.column(COLUMNS.index("timestamp")).cast("int64").to_pylist() == [7000, 8000, None]
    assert found.column(COLUMNS.index("timestampType")).to_pylist() == [0, 1, 0]


def test_rows_outside_the_times_are_left_out() -> None:
    """As the decoder does: min inclusive, max exclusive, and a record without a time is in no interval."""
    times = [(TIMESTAMP_CREATE_TIME, at) for at in (4, 5, 6, 7)] + [(TIMESTAMP_NOT_AVAILABLE, -1)]
    messages = [Got(n, time=time) for n, time in enumerate(times)]
    found = rows_of(messages, RowFilter(0, 9, 5, 7), ("offset",))  # type: ignore[arg-type]
    assert found.column(0).to_pylist() == [1, 2]


def test_a_record_without_timestamp_gets_none_in_the_hot_tail_either() -> None:
    """librdkafka gives −1 of type CreateTime. The tail showed it as 1969-12-31 and let a time range decide on it, and
    failed for a time beyond the microseconds of an int64; the bucket's rows have null for both."""
    times = [(TIMESTAMP_CREATE_TIME, at) for at in (-1, -2, 2**63 // 1000, 2**63 // 1000 + 1)]
    messages = [Got(n, time=time) for n, time in enumerate(times)]
    rows = rows_of(messages, RowFilter(0, 9), ("timestamp",))  # type: ignore[arg-type]
    assert rows.column(0).cast("int64").to_pylist() == [None, -2000, 2**63 // 1000 * 1000, None]
    before = rows_of(messages, RowFilter(0, 9, None, 5), ("offset",))  # type: ignore[arg-type]
    assert before.column(0).to_pylist() == [1]


def test_names_of_the_java_client_reach_librdkafka_as_its_own() -> None:
    given = {"max.poll.records": "5", "receive.buffer.bytes": "100000", "session.timeout.ms": "9000"}
    settings = dict(ConsumerSettings.of("h:1", given, "g", 1).settings)
    assert "max.poll.records" not in settings
    assert settings["socket.receive.buffer.bytes"] == "100000" and settings["session.timeout.ms"] == "9000"
    with pytest.raises(InvalidRequest, match=r"no\.such\.thing"):
        ConsumerSettings.of("h:1", {"no.such.thing": "1"}, "g", 1).consumer()


class CountedTiers:
    """Counts what a watch asks."""

    def __init__(self, has_cluster: bool) -> None:
        self.has_cluster = has_cluster
        self.discoveries = self.manifests = self.looks = 0

    def partitions(self) -> list[TopicPartition]:
        self.discoveries += 1
        return [TopicPartition("t", n) for n in range(self.discoveries)]

    def cold(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, None]:
        self.manifests += len(partitions)
        return dict.fromkeys(partitions)

    def states(self, partitions: Sequence[TopicPartition], cold: dict) -> dict[TopicPartition, object]:
        assert set(cold) == set(partitions)
        self.looks += 1
        return dict.fromkeys(partitions)


def watched(has_cluster: bool, seconds: float, step_s: float = 0.01) -> CountedTiers:
    """A watch that is asked every 10 ms for so long."""
    now = 0.0
    tiers = CountedTiers(has_cluster)
    watch = Watch(tiers, lambda: now)  # type: ignore[arg-type]
    while now < seconds:
        watch.latest()
        now += step_s
    return tiers


def test_a_bucket_is_polled_every_two_seconds() -> None:
    """Every manifest read is billed: a hundred questions a second of Spark's become one every MANIFESTS_S."""
    tiers = watched(False, 4 * MANIFESTS_S)
    assert tiers.looks == 4
    assert tiers.discoveries == 1 + int(4 * MANIFESTS_S // DISCOVER_S)


def test_with_a_cluster_ends_are_asked_often_and_manifests_seldom() -> None:
    tiers = watched(True, 2 * COLD_S)
    assert COLD_S / ENDS_S < tiers.looks <= 2 * COLD_S / ENDS_S + 1
    grown = tiers.discoveries  # each discovery finds one more partition, whose manifest is needed at once
    assert grown <= 2 * COLD_S / DISCOVER_S + 1
    assert tiers.manifests <= (grown + 2) * grown


def test_a_login_by_javas_names_is_librdkafkas_and_is_not_printed() -> None:
    """The options that Spark's own Kafka source takes; a repr of the settings, as in logs, has no password."""
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="hunter2";'
    given = {"sasl.jaas.config": jaas, "security.protocol": "SASL_SSL", "ssl.truststore.location": "/ca.pem"}
    found = ConsumerSettings.of("h:1", given, "g", 1)
    settings = dict(found.settings)
    assert (settings["sasl.username"], settings["sasl.password"]) == ("alice", "hunter2")
    assert settings["ssl.ca.location"] == "/ca.pem" and "sasl.jaas.config" not in settings
    assert "hunter2" not in repr(found)
    with pytest.raises(InvalidRequest) as refused:
        ConsumerSettings.of("h:1", {"sasl.jaas.config": jaas[:-1]}, "g", 1)
    assert "hunter2" not in str(refused.value)
