"""Which brokers a data directory holds, and how many `serve --brokers` makes of that.

Owns the names of their directories and the rule who may be started on what lies there. Always true: a directory that
holds the log of one broker, or of brokers that the command leaves out, is refused before anything is started. Must not
know what a broker is told.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.config.sources import ConfigError
from logformat.checkpoints import META_PROPERTIES_FILE

AUTO: Final = "auto"
_AUTO_MAX: Final = 8


class Layout(NamedTuple):
    """What lies in a data directory: one broker's log (`single`), or those of brokers by number."""

    single: bool
    brokers: tuple[int, ...] = ()


def count_of(text: str | None, layout: Layout, first: int, cores: int, data_dir: str) -> int | None:
    """How many brokers to start below `data_dir`; None: one, in the directory itself, without a supervisor.

    `text`: what --brokers says. ConfigError for what does not go with what lies there: a broker that is left out would
    take what only it holds out of service.
    """
    if layout.single:
        if text not in (None, AUTO, "1"):
            raise ConfigError(
                f"{data_dir} holds the log of one broker, so --brokers {text} cannot have it: leave --brokers out, or "
                "give another --data-dir"
            )
        return None
    if not layout.brokers:
        count = max(1, min(_AUTO_MAX, cores - 1)) if text == AUTO else int(text or 1)
        return None if count == 1 else count
    if text is None:
        raise ConfigError(
            f"{data_dir} holds brokers {_shown(layout.brokers)}, started by --brokers: say --brokers "
            f"{len(layout.brokers)} again, or --brokers {AUTO}"
        )
    count = max(layout.brokers) - first + 1 if text == AUTO else int(text)
    left_out = [node_id for node_id in layout.brokers if not first <= node_id < first + count]
    if left_out:
        raise ConfigError(
            f"{data_dir} holds brokers {_shown(layout.brokers)}; --node-id {first} --brokers {text} would leave out "
            f"{_shown(left_out)}, and what only they hold would be out of service"
        )
    return count


def _shown(brokers: Sequence[int]) -> str:
    return ", ".join(str(node_id) for node_id in brokers)


def directory_of(data_dir: str, node_id: int) -> str:
    """Where one of several brokers lives."""
    return posixpath.join(data_dir, f"broker-{node_id}")


def node_id_of(name: str) -> int | None:
    """The broker that lives in a directory of this name; None: it is no broker's."""
    prefix, _, number = name.rpartition("-")
    is_number = number.isascii() and number.isdigit() and str(int(number[:10])) == number
    return int(number) if prefix == "broker" and is_number else None


def look_at(data_dir: str) -> Layout:
    """What lies in the data directory; nothing where that cannot be read: the broker says why, and ends."""
    if _is_formatted(data_dir):
        return Layout(single=True)
    try:
        numbers = [node_id_of(name) for name in os.listdir(data_dir)]
    except OSError:
        return Layout(single=False)
    found = (number for number in numbers if number is not None)
    return Layout(False, tuple(sorted(number for number in found if _is_formatted(directory_of(data_dir, number)))))


def _is_formatted(path: str) -> bool:
    """Whether it is a broker's data directory."""
    return os.path.exists(os.path.join(path, META_PROPERTIES_FILE))


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
