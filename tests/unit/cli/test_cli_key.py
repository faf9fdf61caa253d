"""`thermocline key`, and `bucket rewrap` where keys are missing. No key's bytes are shown, and no key is lost."""

from __future__ import annotations

import json
import re
import stat
import sys
from io import StringIO
from pathlib import Path

import pytest

from coldstore.encryption.key_file import load_file
from tests.support.store.keys import ring_of, sealed_bytes, secret_of, write_key_file
from thermocline.cli.main import main

TOPIC = "topics/00000000-0000-4000-8000-000000000001/0"
SEGMENTS = [f"{TOPIC}/segments/{n:020d}-1-00000000-0000-4000-8000-00000000000a.log" for n in range(3)]


def bucket_of(place: Path, **objects_of_keys: int) -> str:
    """A bucket with so many segments under each key (`plain`: under none); its URL."""
    names = iter(SEGMENTS)
    for key_id, count in objects_of_keys.items():
        for _ in range(count):
            name = next(names)
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = name.encode() * 10
            path.write_bytes(data if key_id == "plain" else sealed_bytes(name, data, ring_of(key_id)))
    return f"file://{place}"


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


def test_a_second_key_of_a_day_gets_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`key create` and `key rotate` on one day used the same id, and the second was refused. An id that somebody gives
    is not changed."""
    path = str(tmp_path / "keys.json")
    assert main(["key", "create", path]) == 0
    assert [main(["key", "rotate", path]) for _ in range(2)] == [0, 0]
    first, second, third = load_file(path).keys
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", first) and (second, third) == (f"{first}-2", f"{first}-3")
    assert load_file(path).active == third
    assert main(["key", "rotate", path, "--id", first]) == 1
    assert f"has a key {first} already" in capsys.readouterr().err


def test_a_removed_key_is_kept_beside_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was removed at once, without a question and without a copy. Both removed keys are kept; a key with the id of a
    kept one does not replace it."""
    path, kept = write_key_file(tmp_path / "keys.json", "new", "old", "older"), tmp_path / "keys.json.old"
    before = dict(load_file(path).keys)
    assert main(["key", "remove", path, "old"]) == 2
    assert "--yes" in capsys.readouterr().err and dict(load_file(path).keys) == before and not kept.exists()
    for key_id in ("old", "older"):
        assert main(["key", "remove", path, key_id, "--yes"]) == 0
        shown = capsys.readouterr().out
        assert f"{kept} keeps it" in shown and secret_of(key_id).hex() not in shown
    assert list(load_file(path).keys) == ["new"]
    assert dict(load_file(str(kept)).keys) == {key_id: before[key_id] for key_id in ("old", "older")}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    write_key_file(tmp_path / "keys.json", "new", "old", secrets={"old": secret_of("another")})
    assert main(["key", "remove", path, "old", "--yes"]) == 1
    assert "has another key old" in capsys.readouterr().err and "old" in load_file(path).keys
    assert load_file(str(kept)).keys["old"] == before["old"]


def test_a_removed_key_is_put_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator had to edit JSON, while objects could not be read. The key is not active then."""
    path, kept = write_key_file(tmp_path / "keys.json", "new", "old"), tmp_path / "keys.json.old"
    before = load_file(path)
    assert main(["key", "restore", path, "old"]) != 0
    assert str(kept) in capsys.readouterr().err
    assert main(["key", "remove", path, "old", "--yes"]) == 0
    assert main(["key", "restore", path, "older"]) == 1
    assert f"{kept} has no key older; it has old" in capsys.readouterr().err
    assert main(["key", "restore", path, "old"]) == 0
    assert secret_of("old").hex() not in capsys.readouterr().out
    assert load_file(path) == before and list(load_file(str(kept)).keys) == ["old"]
    write_key_file(tmp_path / "keys.json", "new", "old", secrets={"old": secret_of("another")})
    assert main(["key", "restore", path, "old"]) == 1
    assert "has another key old" in capsys.readouterr().err
    assert load_file(path).keys["old"] != before.keys["old"]


def test_a_new_key_never_has_the_id_of_a_removed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A third key of the day got the id of the removed first one. Objects of a backup name only the id, and the removed
    key could not be put back."""
    path = str(tmp_path / "keys.json")
    assert [main(["key", "create", path]), main(["key", "rotate", path])] == [0, 0]
    first, second = load_file(path).keys
    assert main(["key", "remove", path, first, "--yes"]) == 0
    assert main(["key", "rotate", path]) == 0
    assert set(load_file(path).keys) == {second, f"{first}-3"}
    assert main(["key", "rotate", path, "--id", first]) == 1
    assert f"{path}.old has a removed key {first}" in capsys.readouterr().err
    Path(path).unlink()
    assert main(["key", "create", path, "--id", first]) == 1
    assert f"{path}.old has a removed key {first}" in capsys.readouterr().err and not Path(path).exists()


def test_a_question_names_what_becomes_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal: the key's id has to be typed."""
    path = write_key_file(tmp_path / "keys.json", "new", "old")
    for typed, code in (("yes", 1), ("old", 0)):
        terminal = StringIO(f"{typed}\n")
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(["key", "remove", path, "old"]) == code
        assert "Objects under key old cannot be read without it" in capsys.readouterr().err
    assert list(load_file(path).keys) == ["new"]


def test_a_key_that_an_object_of_the_bucket_needs_is_not_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --bucket it is looked for. A URL without objects proves nothing."""
    path = write_key_file(tmp_path / "keys.json", "new", "old", "gone")
    url = bucket_of(tmp_path / "bucket", old=2, new=1)
    assert main(["key", "remove", path, "old", "--bucket", url, "--yes"]) == 3
    said = capsys.readouterr().err
    assert f"2 objects of the bucket are under key old, such as {SEGMENTS[0]}" in said and "rewrap" in said
    empty = f"file://{tmp_path}/bukket"
    assert main(["key", "remove", path, "gone", "--bucket", empty, "--yes"]) == 3
    assert "check the URL" in capsys.readouterr().err and len(load_file(path).keys) == 3
    assert main(["key", "remove", path, "gone", "--bucket", url, "--yes"]) == 0
    assert list(load_file(path).keys) == ["new", "old"]


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_rewrap_counts_objects_that_it_cannot_read_by_key(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dry run left them out; the real one had a line of 300 characters for each."""
    path = write_key_file(tmp_path / "keys.json", "new")
    url = f"{bucket_of(tmp_path / 'bucket', lost=2, plain=1)}?key_file={path}"
    assert main(["bucket", "rewrap", url, *flags]) == 5
    shown = capsys.readouterr().out.splitlines()
    assert shown[:1] == ["2 objects under key lost, which is not in the file"]
    assert shown[1].startswith("1 plain, refused") and len(shown) == 2 + len(flags)
    assert main(["bucket", "rewrap", url, *flags, "--json"]) == 5
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"missing_key": "lost", "objects": 2} in lines and {"outcome": "plain, refused", "objects": 1} in lines
    write_key_file(tmp_path / "keys.json", "lost", secrets={"lost": secret_of("another")})
    assert main(["bucket", "rewrap", url, *flags]) == 5
    assert "2 objects under key lost, but the file has another key under that id" in capsys.readouterr().out


def test_a_rewrap_of_a_cut_off_object_does_not_only_advise_to_accept_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encrypted object without its end looks plain. If plain objects are accepted, a rewrap encrypts it again, and
    says that all is well."""
    path = write_key_file(tmp_path / "keys.json", "new")
    url = f"{bucket_of(tmp_path / 'bucket', new=1)}?key_file={path}"
    file = tmp_path / "bucket" / SEGMENTS[0]
    file.write_bytes(file.read_bytes()[:-150])
    assert main(["bucket", "rewrap", url, "--dry-run"]) == 5
    said = capsys.readouterr().out
    assert "if they are older than the encryption" in said and "cut off: `thermocline bucket verify`" in said
