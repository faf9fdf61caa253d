"""The brokers in a data directory, and how many `serve --brokers` starts there.

A directory with the log of a single broker, or of brokers that the command would leave out, is refused before a start.
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
    """Content of a data directory: one broker's log (`single`), or brokers by node id."""

    single: bool
    brokers: tuple[int, ...] = ()


def count_of(text: str | None, layout: Layout, first: int, cores: int, data_dir: str) -> int | None:
    """The number of brokers to start below `data_dir`. None means one broker in the directory itself, without a
    supervisor.

    `text`: the value of --brokers. Raises ConfigError when it contradicts the directory, because records that only a
    left-out broker has would be unavailable.
    """
    if layout.single:
        if text not in (None, AUTO, "1"):
            raise ConfigError(
                f"{data_dir} holds the log of one broker, so --brokers {text} cannot use it: leave --brokers out, or "
                "give another --data-dir"
            )
        return None
    if not layout.brokers:
        count = max(1, min(_AUTO_MAX, cores - 1)) if text == AUTO else int(text or 1)
        return None if count == 1 else count
    if text is None:
        raise ConfigError(
            f"{data_dir} holds brokers {_shown(layout.brokers)}, started by --brokers: start them with --brokers "
            f"{len(layout.brokers)} again, or --brokers {AUTO}"
        )
    count = max(layout.brokers) - first + 1 if text == AUTO else int(text)
    left_out = [node_id for node_id in layout.brokers if not first <= node_id < first + count]
    if left_out:
        raise ConfigError(
            f"{data_dir} holds brokers {_shown(layout.brokers)}; --node-id {first} --brokers {text} would leave out "
            f"{_shown(left_out)}, and records that only they hold would be unavailable"
        )
    return count


def _shown(brokers: Sequence[int]) -> str:
    return ", ".join(str(node_id) for node_id in brokers)


def directory_of(data_dir: str, node_id: int) -> str:
    return posixpath.join(data_dir, f"broker-{node_id}")


def node_id_of(name: str) -> int | None:
    """The node id in a directory's name; None if it is not the name of a broker's directory."""
    prefix, _, number = name.rpartition("-")
    is_number = number.isascii() and number.isdigit() and str(int(number[:10])) == number
    return int(number) if prefix == "broker" and is_number else None


def layout_of(data_dir: str) -> Layout:
    """The layout of the data directory; empty if it cannot be read (the broker reports why)."""
    if _is_formatted(data_dir):
        return Layout(single=True)
    try:
        numbers = [node_id_of(name) for name in os.listdir(data_dir)]
    except OSError:
        return Layout(single=False)
    found = (number for number in numbers if number is not None)
    return Layout(False, tuple(sorted(number for number in found if _is_formatted(directory_of(data_dir, number)))))


def _is_formatted(path: str) -> bool:
    return os.path.exists(os.path.join(path, META_PROPERTIES_FILE))


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
