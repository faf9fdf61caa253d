"""docs/compaction.md and docs/transactions.md are true: their commands run in their order, their Python too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.docs.test_docs_readme import ROOT, Reader, fences
from tests.support.processes.site import json_lines


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    try:
        made.serve("thermocline serve --data-dir ./broker")
        yield made
        assert made.stop() == 0
    finally:
        if made.broker is not None and made.broker.poll() is None:
            made.broker.kill()
            made.broker.wait()


def commands(page: Path) -> list[str]:
    return [command for fence in fences(page) if fence.language == "sh" for command in fence.commands]


def test_every_command_of_the_compaction_page_runs(reader: Reader) -> None:
    """A line of it had neither `-t` nor any input."""
    printed = {command: reader.type(command) for command in commands(ROOT / "docs/compaction.md")}
    (consumed,) = (text for command, text in printed.items() if "consume" in command)
    keys = [record["key"] for record in json_lines(consumed)]
    assert sorted(keys) == ["eur", "eur", "usd"]
    (program,) = (fence.text for fence in fences(ROOT / "docs/compaction.md") if fence.language == "python")
    reader.python(program)
    records = json_lines(reader.type("thermocline consume -t prices -o beginning -e --json"))
    assert [(one["key"], one["value"]) for one in records if one["value"] is None] == [("eur", None)], "a tombstone"


def test_every_command_of_the_transactions_page_runs(reader: Reader) -> None:
    """After its Python, whose transactional id they name."""
    page = ROOT / "docs/transactions.md"
    reader.type("thermocline topic create invoices -p 4")
    (program,) = (fence.text for fence in fences(page) if fence.language == "python")
    reader.python(program)
    printed = {command: reader.type(command) for command in commands(page)}
    assert "CompleteCommit" in next(text for command, text in printed.items() if "describe" in command)


def test_the_command_that_aborts_says_why_it_does_not(reader: Reader) -> None:
    """The number is where the page says; nothing hangs here, so the command refuses and names that place."""
    page = (ROOT / "docs/transactions.md").read_text()
    (command,) = re.findall(r"^thermocline txn abort .+$", page, re.M)
    reader.type("thermocline topic create invoices -p 4")
    said = reader.type(f"{command} --yes 2>&1; test $? -eq 1")
    assert "no open transaction in invoices-3" in said and "transaction_overdue" in said
