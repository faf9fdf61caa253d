"""Answers stay in proportion to requests: no frame of at most 1 MiB holds the loop for 50 ms or takes 64 MiB of memory.

Input: a recipe of `tests.support.wire.hostile_frames` (API key 2 bytes, then version, array, names, inner arrays,
share), which covers every API of the wire table. Held to are figures that are the same on every machine: calls in a
step of the loop, peak of memory; and a time that only a quadratic search in C takes, which makes no calls. `python -m
tests.fuzz.proportion` measures milliseconds, and finds the dearest frame of each API: they are the corpus.
"""

from __future__ import annotations

import struct

from broker.wire.apis import APIS
from broker.wire.table import MESSAGES
from tests.fuzz.inputs import Cursor, end
from tests.fuzz.kept import kept
from tests.sim.world.loop import SimLoop
from tests.support.wire.hostile_frames import APIS_BY_KEY, Inner, Names, Recipe, paths, versions
from tests.support.wire.proportion import BYTES_MAX, CALLS_MAX, Crowd

NAME = "answers_in_proportion"
MUTANTS = 12  # a second each
_GROSS_S = 2.0  # counting calls and memory takes 0.3 s of the dearest step; 20 000 rows searched in a list 4 s
_LAYOUT = struct.Struct(">HBBBBB")


def packed(recipe: Recipe) -> bytes:
    """The input that is `recipe`."""
    lowest = APIS_BY_KEY[recipe.api_key].version_min
    return _LAYOUT.pack(recipe.api_key, recipe.version - lowest, *recipe[2:])


def recipe_of(data: bytes) -> Recipe:
    """Any bytes are a recipe."""
    cursor = Cursor(data)
    key = cursor.number(2)
    api = APIS_BY_KEY.get(key) or APIS_BY_KEY[sorted(APIS_BY_KEY)[key % len(APIS_BY_KEY)]]
    version = api.version_min + cursor.number() % (api.version_max - api.version_min + 1)
    path = cursor.number() % max(1, len(paths(MESSAGES[api.name + "Request"], version)))
    names = Names(cursor.number() % len(Names))
    inner = Inner(cursor.number() % len(Inner))
    return Recipe(int(api.key), version, path, names, inner, cursor.number())


def seeds() -> list[bytes]:
    """The dearest frame of each API; of a new one, whose dearest nobody looked for, its innermost array filled."""
    made = []
    dearest = kept(NAME)
    for api in APIS.values():
        if api.name in dearest:
            made.append(dearest[api.name])
            continue
        version = versions(api)[-1]
        innermost = max(0, len(paths(MESSAGES[api.name + "Request"], version)) - 1)
        made.append(packed(Recipe(int(api.key), version, innermost, Names.SAME, Inner.ONE)))
    return made


class _Place:
    """One broker for all inputs, in virtual time of its own."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.crowd: Crowd | None = None

    def run(self, recipe: Recipe) -> None:
        self.loop.run_until_complete(self._run(recipe))

    def close(self) -> None:
        end(self.loop)

    async def _run(self, recipe: Recipe) -> None:
        if self.crowd is None or not self.crowd.is_whole():
            self.crowd = await Crowd.make()
        cost = await self.crowd.cost(recipe, clock=True)
        assert cost.calls <= CALLS_MAX, f"{recipe}: {cost.calls} calls in one step of the loop"
        assert cost.hold_s <= _GROSS_S, f"{recipe}: {cost.hold_s:.1f} s in one step of the loop"
        assert cost.bytes <= BYTES_MAX, f"{recipe}: {cost.bytes} bytes"


_places: list[_Place] = []
_held: set[Recipe] = set()  # by this process: a second costs as much


def run(data: bytes) -> None:
    if not _places:
        _places.append(_Place())
    recipe = recipe_of(data)
    if recipe not in _held:
        _places[0].run(recipe)
        _held.add(recipe)


def close() -> None:
    """End the broker, forget what held; the next input gets another."""
    _held.clear()
    while _places:
        _places.pop().close()
