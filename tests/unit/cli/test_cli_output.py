"""What commands print: tables, records, sentences, rows of `tier status`, batches of a log file."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.record_batch import Codec
from logformat.records import Record, encode_batch
from thermocline.cli.bucket.batch_lines import readable
from thermocline.cli.bucket.reading import ColdPartition
from thermocline.cli.clients.statuses import PartitionTierStatus
from thermocline.cli.main import main
from thermocline.cli.records.produce import split_line
from thermocline.cli.records.record_lines import renderer
from thermocline.cli.terminal.output import ProgressLine, json_line, table
from thermocline.cli.tier.retention_text import retention_sentence
from thermocline.cli.tier.status import Offsets, StatusRow, picture, rows


def test_a_table_is_as_wide_as_its_cells() -> None:
    """Text to the left, numbers to the right, no blanks at a line's end."""
    assert table(("name", "n"), [("a", "10"), ("long name", "7")], right=("n",)) == (
        "name        n\na          10\nlong name   7"
    )
    assert table(("name", "n"), []) == "name  n"


def test_a_terminal_gets_no_control_character_of_a_name() -> None:
    """A client may call its group `billing, then an escape sequence`; an operator lists the groups."""
    name = "billing\x1b]0;title\x07\x1b[2J\r\nforged row\x9b31m\u202e é"
    found = table(("group",), [(name,)])
    assert found.splitlines() == [
        "group",
        "billing\\x1b]0;title\\x07\\x1b[2J\\r\\nforged row\\x9b31m\\u202e é",
    ]
    line = json_line({"group": name})
    assert line.isprintable() and json.loads(line) == {"group": name} and "é" in line


def test_progress_is_for_terminals_only() -> None:
    """A script's stderr stays clean."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((io.StringIO(), ""), (Terminal(), "\rworking\rab     \r       \r")):
        progress = ProgressLine(stream)
        progress.show("working")
        progress.show("ab")
        progress.done()
        assert stream.getvalue().replace("\r  \r", "\r       \r") == shown


class Message:
    """A record as confluent-kafka hands it over."""

    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return 42

    def partition(self) -> int:
        return 3

    def topic(self) -> str:
        return "t"

    def timestamp(self) -> tuple[int, int]:
        return 1, 1700

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]


def render(template: str, key: bytes | None, value: bytes | None) -> bytes:
    return renderer(template)(Message(key, value))  # type: ignore[arg-type]


def test_the_consume_format_is_kcats() -> None:
    """Tokens, escapes, literals; nulls print as nothing and have size -1."""
    assert render("%t/%p@%o %T %K:%k=%S:%s %h%%\\n\\t\\\\", b"k", b"v\xff") == b"t/3@42 1700 1:k=2:v\xff a=1,b=%\n\t\\"
    assert render("%K%k%S%s", None, None) == b"-1-1"
    assert render("%s\\n", b"k", None) == b"\n"
    assert render("x%q", None, None) == b"x%q"


@given(st.binary(), st.binary())
def test_the_default_format_writes_values_as_they_are(key: bytes, value: bytes) -> None:
    """Whatever the bytes."""
    assert render("%s\\n", key, value) == value + b"\n"


def test_a_line_is_split_at_the_first_separator() -> None:
    """Without one there is no key; only the newline is cut off."""
    assert split_line(b"k:v:w\n", b":") == (b"k", b"v:w")
    assert split_line(b":v", b":") == (b"", b"v")
    assert split_line(b"v \r\n", b":") == (None, b"v \r")
    assert split_line(b"k:v\n", None) == (None, b"k:v")


def test_the_sentence_about_leaving() -> None:
    """From any broker's configs; -2 follows the total, -1 is for ever."""
    assert retention_sentence(
        {"remote.storage.enable": "false", "retention.ms": "604800000", "retention.bytes": "-1"}
    ) == ("not tiered: data stays on the disk for 7d")
    tiered = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "86400000"}
    assert retention_sentence(tiered) == (
        "tiered: sealed segments are copied to the bucket, stay on the disk for 1d, and in the bucket for ever"
    )
    same = {"remote.storage.enable": "true", "retention.ms": "1000", "local.retention.ms": "-2"}
    assert retention_sentence(same) == "tiered: data stays on the disk and in the bucket for 1s"
    assert "up to 1.0 GiB a partition" in retention_sentence({"retention.bytes": str(2**30)})


def test_the_sentence_about_leaving_knows_the_cleanup_policy() -> None:
    """Without delete nothing leaves, whatever retention.* says; with compact the newest record of each key stays."""
    week = {
        "retention.ms": "604800000",
        "retention.bytes": "5",
        "local.retention.ms": "-2",
        "local.retention.bytes": "-2",
    }
    tiered = week | {"remote.storage.enable": "true", "local.retention.ms": "1000"}
    assert retention_sentence(week | {"cleanup.policy": ""}) == "not tiered: data stays on the disk for ever"
    assert retention_sentence(week | {"cleanup.policy": "compact"}) == (
        "compacted, not tiered: the newest record of each key stays on the disk for ever"
    )
    assert "for 7d, up to 5 B" in retention_sentence(week | {"cleanup.policy": "compact,delete"})
    assert retention_sentence(tiered | {"cleanup.policy": "compact"}) == (
        "compacted, tiered: sealed segments are copied to the bucket, stay on the disk for 1s, and in the bucket "
        "for ever"
    )


CONTRACT = re.findall(
    r"\w+",
    "topic partition leader log_start_offset local_log_start_offset remote_end_offset high_watermark log_end_offset "
    "local_bytes cold_bytes copy_lag_bytes copy_lag_segments copy_lag_ms seal_age_ms gaps blocked_by "
    "stale_bytes rewrite_requests rewrite_bytes replaced_bytes",
)


def test_tier_status_rows_have_the_contracts_names_and_nulls() -> None:
    """From the protocol alone, as against Apache Kafka: what only HTTP or the bucket knows is null."""
    assert [field.name for field in fields(StatusRow)] == CONTRACT
    t = ("t", 0)
    offsets = Offsets({t: 5}, {t: 90}, {t: 40}, {t: 59})
    (row,) = rows({t: 1}, offsets, {t: 1000}, [], {})
    shown = json.loads(row.json())
    assert list(shown) == CONTRACT
    assert shown["remote_end_offset"] == 60 and shown["high_watermark"] == 90 and shown["local_bytes"] == 1000
    assert all(shown[name] is None for name in CONTRACT[7:] if name != "local_bytes")


def test_tier_status_takes_the_rest_from_http_then_from_the_bucket() -> None:
    """HTTP knows the present, the bucket what is committed; a partition nobody answered for is all null."""
    t, u = ("t", 0), ("u", 1)
    status = PartitionTierStatus("t", 0, log_end_offset=95, copy_lag_bytes=7, gaps=((1, 2),), blocked_by="reservation")
    cold = {t: ColdPartition(500, ((10, 20),)), u: ColdPartition(6, ((10, 20),))}
    first, second = rows({u: -1, t: 1}, Offsets({}, {}, {}, {t: -1}), {}, [status], cold)
    assert (first.topic, first.remote_end_offset, first.cold_bytes, first.gaps) == ("t", 0, 500, ((1, 2),))
    assert (first.log_end_offset, first.blocked_by) == (95, "reservation")
    assert (second.leader, second.cold_bytes, second.gaps, second.remote_end_offset) == (None, 6, ((10, 20),), None)
    text = picture([first, second])
    assert "10–19" in text and "reservation" in text and len(text.splitlines()) == 3


def log_file(tmp_path: Path) -> Path:
    file = tmp_path / "00000000000000000000.log"
    records = [Record(0, 5, b"k", "é".encode(), (("h", b"\xff"),)), Record(1, 6, None, None)]
    first = encode_batch(records, codec=Codec.ZSTD, leader_epoch=3)
    second = encode_batch([Record(2, 7, None, b"v v")], producer_id=9, producer_epoch=1, base_sequence=4)
    file.write_bytes(first + second)
    return file


def test_log_dump_prints_batches_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each; text where it is text, hexadecimal where not."""
    file = log_file(tmp_path)
    assert main(["log", "dump", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["batch", "record", "record", "batch", "record"]
    assert "codec=zstd" in lines[0] and "leader_epoch=3" in lines[0] and "last_offset=1" in lines[0]
    assert 'key="k" value="é" headers=[["h", "0xff"]]' in lines[1]
    assert "key=null value=null" in lines[2]
    assert "producer_id=9 producer_epoch=1 base_sequence=4" in lines[3]
    assert main(["log", "dump", str(file), "--batches", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(batch["kind"], batch["base_offset"]) for batch in shown] == [("batch", 0), ("batch", 2)]


def test_log_dump_stops_at_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies before it is shown; the exit code is not 0, and the position is named."""
    file = log_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main(["log", "dump", str(file)]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3 and "CRC" in shown.err and "position" in shown.err
    file.write_bytes(b"")
    assert main(["log", "dump", str(file)]) == 0
    assert main(["log", "dump", str(tmp_path / "none.log")]) == 1
    assert capsys.readouterr().err == f"thermocline: {tmp_path}/none.log: No such file or directory\n"


def test_log_dump_of_a_directory_says_what_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said `[Errno 21] Is a directory`: what scripts of Kafka's tools give is the partition's directory."""
    assert main(["log", "dump", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == f"thermocline: {tmp_path} is a directory; name one of the .log files in it\n"


@given(st.binary(max_size=40))
def test_readable_bytes_come_back(data: bytes) -> None:
    """Either the text itself or all its bytes."""
    text = readable(data)
    assert text is not None
    assert text.encode() == data or bytes.fromhex(text.removeprefix("0x")) == data
