"""`--watch` on a terminal: each picture takes the place of the one before, without an empty screen in between."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from thermocline.cli import watch
from thermocline.cli.outcome import Exit


def shown(pictures: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal gets until ^C."""
    monkeypatch.setattr(watch, "_INTERVAL_S", 0.0)
    left = iter(pictures)

    def lines() -> list[str]:
        try:
            return next(left)
        except StopIteration:
            raise KeyboardInterrupt from None

    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            assert watch.show(lines, watch=True, redraw=True) == Exit.DONE
            return os.read(ours, 65_536).decode()
    finally:
        os.close(ours)


def test_a_shorter_picture_leaves_nothing_of_the_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen that was emptied first flickered once a second."""
    text = shown([["a long line", "two"], ["short"]], monkeypatch)
    assert text == "\x1b[Ha long line\x1b[K\r\ntwo\x1b[K\r\n\x1b[J\x1b[Hshort\x1b[K\r\n\x1b[J"
    assert "\x1b[2J" not in text


def test_what_is_no_terminal_gets_every_picture(capsys: pytest.CaptureFixture[str]) -> None:
    left = iter([["one"], ["two"]])
    assert watch.show(lambda: next(left), watch=False, redraw=True) == Exit.DONE
    assert capsys.readouterr().out == "one\n"
