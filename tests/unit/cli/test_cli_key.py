"""`thermocline key list`: for people, and for scripts. No key's bytes are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.store.keys import secret_of, write_key_file
from thermocline.cli.main import main


def test_a_list_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_key_file(tmp_path / "keys.json", "new", "old", accept_plain=True)
    assert main(["key", "list", path, "--json"]) == 0
    shown = capsys.readouterr().out
    assert [json.loads(line) for line in shown.splitlines()] == [
        {"id": "new", "active": True, "kms": None, "accept_plain": True},
        {"id": "old", "active": False, "kms": None, "accept_plain": True},
    ]
    assert secret_of("new").hex() not in shown
    assert main(["key", "list", path]) == 0
    assert "active new" in capsys.readouterr().out
