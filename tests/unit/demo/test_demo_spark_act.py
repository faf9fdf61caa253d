"""The demo's Spark act: it says why it is left out, and it does not pass what is wrong."""

from __future__ import annotations

import io
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from thermocline import extras
from thermocline.demo import payload as demo_payload
from thermocline.demo import spark_act
from thermocline.demo.payload import PARTITIONS, Failed, Payload, Sums
from thermocline.demo.picture import Picture


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Sums]:
    """What 10 records add up to."""
    monkeypatch.setattr(demo_payload, "RECORDS", 10)
    return Payload().sums()


def test_without_the_extra_the_act_is_left_out_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No process is started: there is nothing in the directory to read."""

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "pyspark" else ModuleSpec(name, None)

    monkeypatch.setattr(extras, "find_spec", find_spec)
    ((name, value),) = spark_act.perform(tmp_path, Payload(), Picture())
    assert name == "replayed by Spark"
    assert value == "left out: no pyspark; pip install 'thermocline[spark]'"
    assert not list(tmp_path.iterdir())


def test_sums_tell_records_apart(small: list[Sums]) -> None:
    """Ten records in four partitions: offsets from 0, and no two partitions with the same sums."""
    assert [sums[:3] for sums in small] == [(3, 0, 2), (3, 0, 2), (2, 0, 1), (2, 0, 1)]
    assert len({sums.crc32 for sums in small}) == len({sums.md5 for sums in small}) == PARTITIONS


def test_spark_must_have_seen_exactly_what_was_produced(small: list[Sums]) -> None:
    """The right sums are a line of the table; one row, one offset or one bit more is a failure."""
    right = [[partition, *sums[:4]] for partition, sums in enumerate(small)]
    assert heard(right, small)[0] == "replayed by Spark, no broker"
    for column in (1, 3, 4):
        wrong = [list(row) for row in right]
        wrong[2][column] += 1
        with pytest.raises(Failed, match="Spark saw"):
            heard(wrong, small)


def test_a_spark_that_dies_is_a_failure(small: list[Sums]) -> None:
    """An end of its output is no result."""
    with pytest.raises(Failed, match="ended before the end of its replay"):
        spark_act._replayed(io.StringIO(""), small, Picture())


def test_every_second_of_the_demo_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The acts' seconds add up to the whole; Spark's first start is two acts of its own, not part of the reading."""
    now = 100.0
    picture = Picture(clock=lambda: now)
    picture.live = False
    now += 2.5
    picture.act("a broker started")

    class Said(io.StringIO):
        """Each line takes ten seconds to come."""

        def readline(self, size: int = -1) -> str:  # type: ignore[override]
            nonlocal now
            now += 10
            return super().readline(size)

    spark_act._started(Said('{"act": "java"}\n{"act": "workers"}\n'), picture)
    assert [seconds for _, seconds in picture.acts] == [2.5, 10, 10]
    lines = picture.seconds().splitlines()
    assert [line.split()[-2] for line in lines] == ["2.5", "10.0", "10.0", "22.5"]
    assert "Spark's first start: Java" in lines[1] and "Spark's first start: its Python workers" in lines[2]
    assert lines[3].startswith("  all of it ") and len({len(line) for line in lines}) == 1
    assert capsys.readouterr().out.startswith("[ 22.5 s] Spark is up")


def heard(sums: list[list[int]], expected: list[Sums]) -> tuple[str, str]:
    line = json.dumps({"act": "replay", "seconds": 1.5, "sums": sums})
    return spark_act._replayed(io.StringIO(line + "\n"), expected, Picture())
