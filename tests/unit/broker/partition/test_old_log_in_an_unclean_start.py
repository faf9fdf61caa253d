"""An old log of a compacted topic follows no leader unchecked, even if its broker learns late that the leader's unclean
start is done (ADR 32).

`delete.retention.ms` is 1 s here.
"""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from tests.support.brokers.shared_bucket import until
from tests.unit.broker.partition.test_returned_replica_of_a_compacted_log import (
    brings_nothing_back,
    moved_away_while_deleted,
)
from tiering.opening.older_copy_note import write_older_copy_note


@pytest.mark.parametrize("is_joining", [False, True], ids=["older copy", "moved away"])
async def test_an_old_log_brings_no_deleted_record_back_after_an_unclean_start(*, is_joining: bool) -> None:
    """Regression: the leader served, and the other broker still had the image of the start. It followed with its old
    log, unchecked, so it was in sync with the deleted record."""
    pair = await moved_away_while_deleted()
    epoch = pair.row.leader_epoch + 1
    pair.change(leader_epoch=epoch, in_sync=(1,), unclean_epoch=epoch, clean=False)
    if is_joining:
        pair.change(target=(1, 2))
    else:
        pair.change(replicas=(1, 2))
        with closing(pair.places[2].disk.open_dir("/data/a/log-0")) as directory:
            write_older_copy_note(directory)
    pair.renew(2)
    pair.publish()
    await asyncio.sleep(5)
    pair.change(clean=True, served_epoch=epoch)
    pair.publish(1)
    await until(lambda: pair.leads(1), "1 leads")
    await asyncio.sleep(10)
    if pair.followed(2) is not None:  # then the leader proposes it
        pair.change(replicas=(1, 2), target=(), in_sync=(1, 2))
    pair.publish()
    await brings_nothing_back(pair)
