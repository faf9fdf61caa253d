"""Removing a directory while another one removes it too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from seams.files.disk import remove_tree
from seams.files.posix_disk import PosixDisk


def planted(root: Path) -> str:
    """A directory like a log's, one level deeper than needed."""
    for name in ("a/0.log", "a/0.index", "a/b/1.log", "c.log"):
        (root / "gone" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "gone" / name).write_bytes(b"x")
    return str(root / "gone")


class Overtaken(PosixDisk):
    """Somebody else removes everything at `path` right before the call named `at`."""

    def __init__(self, at: str, path: str) -> None:
        self._at = at
        self._path = path

    def _overtake(self, at: str) -> None:
        if at == self._at:
            self._at = ""
            remove_tree(PosixDisk(), self._path)

    def list_dir(self, path: str) -> list[str]:
        self._overtake("list")
        found = super().list_dir(path)
        self._overtake("listed")
        return found

    def unlink(self, path: str) -> None:
        self._overtake("unlink")
        super().unlink(path)

    def remove_dir(self, path: str) -> None:
        self._overtake("rmdir")
        super().remove_dir(path)


@pytest.mark.parametrize("at", ["list", "listed", "unlink", "rmdir"])
def test_what_another_one_removed_first_is_gone_all_the_same(tmp_path: Path, at: str) -> None:
    """Forty topics deleted at once: of two purges over the same directories one failed with "No such file", and tried
    again up to five minutes later."""
    path = planted(tmp_path)
    remove_tree(Overtaken(at, path), path)
    assert not Path(path).exists()


def test_two_threads_remove_one_tree(tmp_path: Path) -> None:
    """The same without a script: both begin at once, over and over."""
    for at in range(200):
        path = planted(tmp_path / str(at))
        start = threading.Barrier(2)
        failures: list[OSError] = []

        def remove(path: str = path, start: threading.Barrier = start, failures: list[OSError] = failures) -> None:
            start.wait()
            try:
                remove_tree(PosixDisk(), path)
            except OSError as failure:
                failures.append(failure)

        threads = [threading.Thread(target=remove) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert not Path(path).exists()
