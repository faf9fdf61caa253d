"""`--watch` on a terminal: each picture takes the place of the one before, without an empty screen in between."""

from __future__ import annotations

import os
import pty
import sys
from contextlib import suppress

import pytest

from thermocline.cli.terminal import watch
from thermocline.cli.terminal.outcome import Exit


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
        found = b""
        with suppress(OSError):  # EIO: all was read of what nobody writes to any more
            while data := os.read(ours, 65_536):
                found += data
        return found.decode()
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


def test_a_picture_taller_than_the_screen_keeps_its_head() -> None:
    """It scrolled: who decides, and who is away, was the first to go. Long lines take several rows."""
    lines = [f"line {number}" for number in range(30)]
    shown = watch.fitting(lines, 80, 24)
    assert len(shown) == 23 and shown[0] == "line 0" and shown[-1].startswith("… and 8 lines more")
    assert watch.fitting(lines[:23], 80, 24) == lines[:23]
    assert watch.fitting(["x" * 200, "y", "z"], 80, 5)[:1] == ["x" * 200]
    assert len(watch.fitting(["x" * 200, "y", "z"], 80, 5)) == 2
    assert watch.fitting(lines, 80, 0) == lines
