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
