"""A power cut in the middle of what one call does to a `CrashDisk`."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.disk.crash_disk import CrashDisk


class PowerCut(BaseException):
    """No code of the product catches it."""


def cut_before(number: int, disk: CrashDisk) -> Callable[[str, str], None]:
    """For `disk.on_effect`: the power goes before the effect of that number."""
    seen = 0

    def hook(kind: str, path: str) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            disk.on_effect = None
            raise PowerCut

    return hook


def cut_off(disk: CrashDisk, number: int, work: Callable[[], object]) -> bool:
    """Do `work` up to its effect `number`, from 0 on. No later effect happens. Returns whether it came to its end
    before."""
    left = number

    def hook(kind: str, path: str) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1

    disk.on_effect = hook
    try:
        work()
    except PowerCut:
        return False
    finally:
        disk.on_effect = None
    return True
