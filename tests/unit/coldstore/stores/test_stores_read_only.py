"""A store that refuses to write."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from crc32c import crc32c

from coldstore.object_store import AccessRefused, ObjectStore, ReadStore, Upload
from coldstore.stores.read_only import ReadOnlyStore
from tests.support.store.memory_store import MemoryStore

DATA = b"theirs"


def names(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, callable) if not name.startswith("_")}


def test_reads_go_through_and_writes_do_not() -> None:
    """Every call of the protocol that is no read raises before the store hears of it, and is counted."""

    async def scenario() -> None:
        inner = MemoryStore()
        await inner.put_root("a", DATA, None)
        before = dict(inner.objects)
        store = ReadOnlyStore(inner)
        got = await store.get("a")
        assert got.data == DATA and await store.get_if_changed("a", got.etag) is None
        assert (await store.head("a")).size == len(DATA)
        assert [info.key async for info in store.list("")] == ["a"]
        assert store.open_local("a") is None and store.url == inner.url
        upload = Upload(1, crc32c(b"x"), lambda: iter((b"x",)))
        calls: dict[str, tuple[Any, ...]] = {
            "put_segment": ("b", upload), "put_root": ("a", b"", got.etag), "delete": (["a"],)
        }  # fmt: skip
        writing = names(ObjectStore) - names(ReadStore) - {"open_local"}
        assert calls.keys() == writing, "a call that was not thought of"
        for name, arguments in calls.items():
            with pytest.raises(AccessRefused, match="only read"):
                await getattr(store, name)(*arguments)
        assert inner.objects == before and store.refused == len(calls)
        await store.close()

    asyncio.run(scenario())
