"""`thermocline tier seal`: one POST to each broker, and progress on stderr.

It reports "everything is in the bucket" only if every broker was asked, every partition has a leader, the requested
topic is tiered, and all that was committed when the command began is in the bucket by the leaders' word. A wait without
progress says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final

from broker.config.units import show_duration
from thermocline.cli.clients.connections import get_json, http_addresses
from thermocline.cli.clients.http_client import HttpAddress, HttpRefused, post_json
from thermocline.cli.clients.statuses import BrokerStatus, PartitionTierStatus
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note
from thermocline.cli.tier.reader import TierReader
from thermocline.cli.tier.status import StatusRow
from thermocline.units import show_size

_SAY_AGAIN_S: Final = 30.0
_NAMED_MAX: Final = 3


def seal(bootstrap: str, topic: str | None, *, wait: bool) -> int:
    """Seal and copy a topic (None: all). With `wait`, return when the topic is in the bucket. Raises CommandFailed when
    a part of the topic is not there."""
    source = TierReader(bootstrap, topic, None)
    committed = {(row.topic, row.partition): row.high_watermark for row in source.read()}  # raises for a mistyped name
    brokers = http_addresses(bootstrap)
    if wait and len(brokers) > 1:
        for address in brokers.values():
            _post(address, topic, wait=False)  # start all of them, then wait for each
    done = [_post(address, topic, wait=wait) for address in brokers.values()]
    if not all(done):
        note("sealed; copying continues, see `thermocline tier status`")
        return Exit.DONE
    found = source.read()
    uncopied = source.uncopied(found)
    if leaderless := source.leaderless():
        raise CommandFailed(
            f"no leader: {_named(leaderless)}; records that only their brokers hold are not in the bucket; see "
            "`thermocline cluster status`"
        )
    if topic in uncopied:
        raise CommandFailed(f"topic {topic} is not copied to the bucket: {uncopied[topic]}; it is on this disk only")
    # A partition whose leader changed between the answers of two brokers may have been sealed by neither.
    left = [
        f"{row.topic}-{row.partition}"
        for row in found
        if row.topic not in uncopied and _is_left(row, committed.get((row.topic, row.partition), 0))
    ]
    if left:
        raise CommandFailed(
            f"not all of {_named(left)} is in the bucket: another broker may have begun to lead it since this command "
            "began; run the command again"
        )
    note("everything is in the bucket" if not uncopied else "everything that is tiered is in the bucket")
    for name, why in uncopied.items():
        note(f"NOT in the bucket, on this disk only: {name} ({why})")
    return Exit.DONE


def _is_left(row: StatusRow, committed: int | None) -> bool:
    """Whether the bucket may lack records below `committed` (None: unknown)."""
    end = row.high_watermark if committed is None else committed
    return end is None or max(row.remote_end_offset or 0, row.log_start_offset or 0) < end


def _named(partitions: Sequence[str]) -> str:
    return f"{', '.join(partitions[:_NAMED_MAX])}{' …' * (len(partitions) > _NAMED_MAX)}"


def _post(address: HttpAddress, topic: str | None, *, wait: bool) -> bool:
    """Ask one broker to seal. Returns whether all its partitions are in the bucket."""
    progress = ProgressLine()
    progress.show("sealing and copying…" if wait else "sealing…")
    waiting = _SealProgress(address, topic, progress).poll if wait else None
    try:
        answer = post_json(address, "/tier/seal", json.dumps({"topic": topic, "wait": wait}), waiting)
    except HttpRefused as refused:
        what = f"sealing {topic or 'all topics'}"
        raise CommandFailed(f"{what}: {refused}; see `thermocline tier status`") from refused
    finally:
        progress.done()
    return bool(json.loads(answer or b"{}").get("done"))


class _SealProgress:
    """Polls the sealing broker; prints a note when its blockers change, and every `_SAY_AGAIN_S`."""

    def __init__(self, address: HttpAddress, topic: str | None, progress: ProgressLine) -> None:
        self._address = address
        self._topic = topic
        self._progress = progress
        self._began_s = time.monotonic()
        self._said: tuple[str, ...] = ()
        self._say_again_s = self._began_s + _SAY_AGAIN_S

    def poll(self) -> None:
        broker = get_json(self._address, "/broker", BrokerStatus)
        partitions = get_json(self._address, "/status", list[PartitionTierStatus])
        if broker is None or partitions is None:
            return  # the response to the POST has the outcome
        left = [p for p in partitions if self._topic in (None, p.topic) and p.copy_lag_bytes]
        count = f"{len(left)} partition{'s' * (len(left) != 1)}"
        line = f"still sealing: {show_size(sum(p.copy_lag_bytes or 0 for p in left))} of {count} to copy"
        why = tuple(blocked.by for blocked in broker.blocked)
        now_s = time.monotonic()
        if why != self._said or now_s >= self._say_again_s:
            waited = f", after {show_duration(int(now_s - self._began_s) * 1000)}"
            self._progress.done()
            note("; ".join((line + waited * (why == self._said), *map(str, broker.blocked))))
            self._said, self._say_again_s = why, now_s + _SAY_AGAIN_S
        self._progress.show(f"{line}…")
