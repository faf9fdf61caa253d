"""docs/cli.md is true: its commands run in its order, its names are those that are printed, its times are those."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.docs.test_docs_readme import Reader, fences
from tests.support.processes.site import json_lines
from tests.support.repository import ROOT
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.times import parse_time

PAGE = ROOT / "docs/cli.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    try:
        made.serve("thermocline serve --data-dir ./broker")
        yield made
    finally:
        if made.broker is not None and made.broker.poll() is None:
            made.broker.kill()
            made.broker.wait()


def test_every_command_runs_and_prints_what_the_page_says(reader: Reader) -> None:
    """In order; the JSON names are the page's."""
    printed = {line: reader.type(line) for fence in fences(PAGE) if fence.language == "sh" for line in fence.commands}
    assert printed["thermocline consume -t greetings -e -f '%o %k: %s\\n'"] == "0 alice: hello\n"
    assert printed["thermocline consume -t orders -o -3 -e"].split() == ["998", "999", "1000"]
    assert printed["thermocline consume -t orders -o @2026-11-01T08:30Z -e -n 1"].split() == ["101"]
    (record,) = json_lines(printed["thermocline consume -t greetings -e --json"])
    (example,) = (json.loads(fence.text) for fence in fences(PAGE) if fence.language == "json")
    named = re.search(r"`consume --json`: `([\w ]+)`", PAGE.read_text())
    assert named is not None and list(record) == list(example) == named[1].split()
    for command, words in (
        ("group describe", "thermocline group describe billing --json"),
        ("group reset", "thermocline group reset billing --to-offset 200 --topic orders:0 --json"),
    ):
        names = re.search(rf"`{command}.*?: `(group [\w \n]+)`", PAGE.read_text(), re.S)
        assert names is not None, command
        rows = json_lines(printed[words])
        assert rows and {tuple(row) for row in rows} == {tuple(names[1].split())}, command
    assert "lag" in printed["thermocline group describe billing"]
    assert (
        "moved billing in 1 partition"
        in printed["thermocline group reset billing --to-offset 200 --topic orders:0 --execute"]
    )
    shown = json_lines(printed["thermocline cluster status --json"])
    kinds = dict(re.findall(r"^\| `(cluster|broker|partition|finding|note)` \| `([\w ]+)` \|$", PAGE.read_text(), re.M))
    assert {line["kind"] for line in shown} == {"cluster", "broker", "partition"} and len(kinds) == 5
    assert all(" ".join(line) == f"kind {kinds[line['kind']]}" for line in shown)
    assert "nothing is wrong" in printed["thermocline cluster status"]
    listed = re.search(r"Names of `--json`:\s+`([\w \n]+)`", PAGE.read_text())
    rows = json_lines(reader.type("thermocline topic list --json"))
    assert listed is not None and [list(row) for row in rows] == [listed[1].split()] * 2


def test_exit_codes_are_the_commands() -> None:
    """Each of the enumeration, and ^C."""
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.M)]
    assert told == [*sorted(Exit), 130]


def test_times_are_read_as_the_page_says() -> None:
    """The three that name their zone; those that do not say which they were taken for."""
    written = re.findall(r"^\| (`@.*?`) \|", PAGE.read_text(), re.M)
    found = [parse_time(text) for cell in written for text in re.findall(r"`(@[^`]+)`", cell)]
    assert [one.ms for one in found[:3]] == [1_793_491_200_000, 1_793_521_800_000, 1_793_518_200_000]
    assert [bool(one.meaning) for one in found] == [False, False, False, True, True]
