"""docs/cluster.md and the README's three brokers are true: their commands run in their order, on free ports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.docs.test_docs_readme import README, ROOT, Fence, Reader
from tests.support.processes.site import json_lines

PAGE = ROOT / "docs/cluster.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    made.environment |= {"THERMOCLINE_LISTENERS": "127.0.0.1:0", "THERMOCLINE_HTTP": "127.0.0.1:0"}
    try:
        yield made
    finally:
        if made.broker is not None and made.broker.poll() is None:
            made.broker.kill()  # its brokers stop with it
            made.broker.wait()


def typed(page: Path, begin: str, end: str) -> list[str]:
    """Commands of a part of a page, in order."""
    text = page.read_text()
    text = text[text.index(begin) : text.index(end)]
    found = [Fence(*fence) for fence in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)]
    return [command for fence in found if fence.language == "sh" for command in fence.commands]


def run(reader: Reader, commands: list[str]) -> dict[str, str]:
    """The first serves; what the others printed. All that was started ends in order."""
    serve, *others = commands
    ready = dict(part.split("=", 1) for part in reader.serve(serve).split()[1:])
    assert ready["node"] == "1-3" and len(ready["kafka"].split(",")) == len(ready["http"].split(",")) == 3
    reader.environment["THERMOCLINE_BOOTSTRAP_SERVER"] = ready["kafka"]
    printed = {command: reader.type(command) for command in others}
    assert reader.stop() == 0
    return printed


def test_every_command_of_the_page_runs(reader: Reader) -> None:
    """Nothing is wrong in a cluster that was just made, and what was written is read."""
    printed = run(reader, typed(PAGE, "<!-- typed:", "## Three brokers on three machines"))
    assert "nothing is wrong" in printed["thermocline cluster status"]
    consumed = next(text for command, text in printed.items() if "consume" in command)
    assert sorted(consumed.split(), key=int) == [str(n) for n in range(1, 1001)]
    shown = json_lines(printed["thermocline cluster status --json"])
    rows = [line for line in shown if line["kind"] == "partition" and line["topic"] in ("events", "orders")]
    assert {line["leader"] for line in rows if line["topic"] == "events"} == {1, 2, 3}
    assert {tuple(sorted(line["replicas"])) for line in rows if line["topic"] == "orders"} == {(1, 2, 3)}


def test_three_lines_make_three_brokers(reader: Reader) -> None:
    """The README's front page: a topic of three replicas is there after the second command that is typed."""
    install, serve, create = typed(README, "<!-- three lines:", "Comparison:")
    assert install == "pip install ."
    printed = run(reader, [serve, create, "thermocline cluster status"])
    assert "created orders" in printed[create] and "nothing is wrong" in printed["thermocline cluster status"]


def test_the_three_brokers_of_the_readme(reader: Reader) -> None:
    printed = run(reader, typed(README, "## Three brokers", "## Replay with Spark"))
    assert "nothing is wrong" in printed["thermocline cluster status"]
