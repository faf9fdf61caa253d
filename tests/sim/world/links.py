"""Who reaches whom: a link for each way between two places (where a broker runs, clients, the store).

Owns which links are cut or slow, and what waits for them. Always true: a cut link loses nothing and breaks nothing, it
is silent (TCP sends again until it hears): what was under way goes on in its order once the link is healed; nobody is
told of a cut. Must not know connections, brokers or why a link is cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import Context

from tests.sim.world.loop import PROCESS

STORE = "store"
CLIENTS = "clients"

Link = tuple[str, str]
"""From, to."""


def both_ways(links: Iterable[Link]) -> list[Link]:
    """Each of them, and its way back."""
    return [way for a, b in links for way in ((a, b), (b, a))]


def place_of(context: Context) -> str:
    """Where the code of this context runs."""
    process = context.get(PROCESS)
    return CLIENTS if process is None else process.place


class Links:
    """`hits` counts what took effect: pieces that were held, connects and requests of the store that waited."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.hits: Counter[str] = Counter()
        self._cut: set[Link] = set()
        self._delays_s: dict[Link, float] = {}
        self._held: dict[Link, list[tuple[Callable[[], None], Context]]] = {}
        self._changed: asyncio.Future[None] | None = None

    # --- what is so ---
    def up(self, source: str, target: str) -> bool:
        return (source, target) not in self._cut

    def delay_s(self, source: str, target: str) -> float:
        """On top of what every link takes."""
        return self._delays_s.get((source, target), 0.0)

    def passes(self, source: str, target: str, arrive: Callable[[], None], context: Context) -> bool:
        """Whether what arrives now does; what does not is called in `context` when the link is healed, in order."""
        if not self._cut or (source, target) not in self._cut:
            return True
        self.hits["held"] += 1
        self._held.setdefault((source, target), []).append((arrive, context))
        return False

    async def until_up(self, *links: Link) -> None:
        """Wait until all of them are up at once."""
        if self._cut.isdisjoint(links):
            return
        self.hits["waited"] += 1
        while not self._cut.isdisjoint(links):
            await self.change()

    async def change(self) -> None:
        """Wait until something of a link is another."""
        if self._changed is None:
            self._changed = self._loop.create_future()
        await asyncio.shield(self._changed)

    # --- what makes it so ---
    def cut(self, links: Iterable[Link]) -> None:
        self._cut.update(links)

    def slow(self, links: Iterable[Link], delay_s: float) -> None:
        for link in links:
            self._delays_s[link] = delay_s

    def heal(self, links: Iterable[Link] | None = None) -> None:
        """These, or all: up, and as quick as ever."""
        for link in sorted(self._cut | self._delays_s.keys() if links is None else links):
            self._cut.discard(link)
            self._delays_s.pop(link, None)
            for arrive, context in self._held.pop(link, ()):
                self._loop.call_soon(arrive, context=context)
        self.tell()

    def tell(self) -> None:
        """Whoever waits for a change looks again."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)
