"""A root that does not decode: damage of the object, or of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from coldstore.object_store import Got, StoreUnavailable
from coldstore.roots.root import RootCodec
from coldstore.roots.root_reading import READS_MAX, SAME_READS, read_root
from logformat.errors import Corrupt
from tests.support.store.memory_store import MemoryStore

KEY = "cluster.json"


class Content(msgspec.Struct, frozen=True):
    names: tuple[str, ...] = ()


CODEC = RootCodec(Content)
WHOLE = CODEC.encode(1, 1, ((1, "a" * 32),), Content(("x",)))


class Answers(MemoryStore):
    """GET number n, from 0, is answered with `answer(n)`: (bytes, ETag)."""

    def __init__(self, answer: Callable[[int], tuple[bytes, str]]) -> None:
        super().__init__()
        self._answer = answer
        self.gets = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        data, etag = self._answer(self.gets)
        self.gets += 1
        return Got(data, etag, len(data))


def read(store: Answers, got: Got | None = None) -> tuple[str, ...]:
    return asyncio.run(read_root(store, KEY, CODEC.decode, got)).content.names


def test_what_stays_damaged_in_one_version_is_damage() -> None:
    store = Answers(lambda n: (WHOLE[:-9], "v1"))
    with pytest.raises(Corrupt, match="restore an earlier version"):
        read(store)
    assert store.gets == SAME_READS


@pytest.mark.parametrize("torn", [2, 5, READS_MAX - 1])
def test_a_root_replaced_under_several_reads_is_read_at_last(torn: int) -> None:
    """As often as a busy writer commits between two requests of the client: never called damage."""
    store = Answers(lambda n: (WHOLE, f"v{n}") if n == torn else (WHOLE[:-9], f"v{n}"))
    assert read(store) == ("x",) and store.gets == torn + 1
    assert read(Answers(lambda n: (WHOLE, "v1")), Got(WHOLE[:-9], "v0", len(WHOLE) - 9)) == ("x",)


def test_a_root_replaced_under_every_read_is_no_damage_either() -> None:
    store = Answers(lambda n: (WHOLE[:-9], f"v{n}"))
    with pytest.raises(StoreUnavailable, match="changed under each of 12 reads; try again"):
        read(store)
    assert store.gets == READS_MAX
