"""A broker that stops begins no role any more, whatever an image says: its clean marker vouches for every log."""

from __future__ import annotations

import asyncio

from hotstore.host.open_log import OpenLog
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, VALUES, Three


async def test_nothing_is_copied_into_a_log_that_was_closed_for_the_stop() -> None:
    """Its other logs were still closing when the leader died: it copied from the next one, which acknowledged, and
    marked the directory clean over it. After a power cut it led without that record, and gave its offset again."""
    three = Three("thermocline.flush=os", "auto.leader.rebalance.enable=false")
    for node_id in NODES:
        await three.start(node_id)
    controller = three.lives[1].context.controller
    for name in ("log", "second"):
        await controller.create_topic(name, 1, {"min.insync.replicas": "2"}, assignments=[(0, (2, 1, 3))])
    await until(lambda: ("log", 0) in three.lives[2].context.registry.partitions, "it is led")
    for _, value in VALUES:
        assert (await three.lives[2].produce("log", value)).error_code == 0
    await until(lambda: len(three.row(1).in_sync) == len(NODES), "all are in sync")
    stopping = three.lives.pop(3)
    replicas, followed = stopping.replicas, stopping.context.registry.followed
    logs, reached, go_on = replicas._logs, asyncio.Event(), asyncio.Event()
    close = logs.close

    async def slow_close(opened: OpenLog, *, clean: bool) -> bool:
        if opened.place.topic == "second":  # of a thousand that are closed one after the other
            reached.set()
            await go_on.wait()
        return await close(opened, clean=clean)

    logs.close = slow_close  # type: ignore[method-assign]
    stop = asyncio.ensure_future(stopping.stop())
    await reached.wait()
    await three.lives.pop(2).crash()
    await until(lambda: ("log", 0) in three.lives[1].context.registry.partitions, "another one leads")
    asked = asyncio.ensure_future(three.lives[1].produce("log", b"asked"))
    await asyncio.sleep(5.0)
    assert not followed and not stop.done()
    go_on.set()
    await stop
    is_acked = asked.done() and asked.result().error_code == 0
    assert not is_acked, "the only other one that lives was stopping"
    asked.cancel()
    await three.lives.pop(1).crash()
    three.places[3].power_cut()
    three.places[2].kill()
    await asyncio.gather(three.start(3), three.start(2))
    await until(lambda: three.row(3).leader in (2, 3), "one of them leads")
    leader = three.row(3).leader
    await until(lambda: ("log", 0) in three.lives[leader].context.registry.partitions, "it serves")
    assert await three.lives[leader].read_all("log") == VALUES
    for life in three.lives.values():
        await life.crash()
