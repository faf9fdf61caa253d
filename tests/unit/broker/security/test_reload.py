"""A reload whose caller gave up is over before the next one begins."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from broker.security.reload import Outcome, Reload
from broker.security.sasl.logins import ConfiguredUsers, Logins
from seams.loop.workers import ThreadWorkers


def test_the_users_of_a_reload_that_timed_out_do_not_replace_those_of_a_later_one() -> None:
    """Found by reading: after 60 s a reload over HTTP is given up, and its thread goes on. It had read the file before
    an operator removed a user and reloaded again. Its users then replaced the new ones: the removed user could log in
    until the next reload, although the answer said that the new file is in use."""
    read, may_end = threading.Event(), threading.Event()
    file, in_use = ["alice", "mallory"], list[tuple[str, ...]]()

    def reread() -> Any:
        found = tuple(file)
        if not read.is_set():
            read.set()
            assert may_end.wait(10.0)
        return SimpleNamespace(sasl=found)

    def use(users: tuple[str, ...]) -> bool:
        in_use.append(users)
        return True

    logins: Logins = SimpleNamespace(use_plain_users=use, plain_users_count=1)  # type: ignore[assignment]

    async def scene() -> None:
        workers, reload = ThreadWorkers(), Reload()
        reload.add(ConfiguredUsers(reread, logins))
        try:
            first = asyncio.create_task(reload.run(workers))
            while not read.is_set():
                await asyncio.sleep(0.001)
            first.cancel()
            await asyncio.wait([first])
            file.remove("mallory")
            second = asyncio.create_task(reload.run(workers))
            await asyncio.wait([second], timeout=0.1)
            may_end.set()
            assert [one.outcome for one in await second] == [Outcome.LOADED]
        finally:
            may_end.set()
            workers.close()

    asyncio.run(scene())  # with threads
    assert in_use[-1] == ("alice",)
