"""`bucket rewrap`: encrypt the data keys of a bucket's objects with the active key, and list the keys that are still
needed. Exit 5 when an object could not be rewrapped. Objects under a key that the file lacks are reported by key.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection
from typing import NamedTuple

from coldstore.encryption.rewrap import Outcome, Rewrapped, Tally, keys_of_objects
from coldstore.stores.opening import open_rewrapper, open_undecrypted
from seams.loop.workers import ThreadWorkers
from thermocline.cli.bucket.reading import bucket_url_of, world_of
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.output import ProgressLine, json_line

_QUIET = (Outcome.CURRENT, Outcome.FOREIGN)
_SUMMED = (Outcome.NO_KEY, Outcome.PLAIN)  # a line for each key says more than a line for each object
_SHOWN_DRY = (Outcome.DAMAGED, Outcome.BUSY)


class Under(NamedTuple):
    """Numbers of objects in the bucket and under one key, and the name of the first one under it."""

    objects: int
    under: int
    example: str


def objects_under(url: str, key_id: str) -> Under:
    """Read the end of every object of the bucket."""
    parsed, progress = bucket_url_of(url), ProgressLine()

    async def run() -> Under:
        workers = ThreadWorkers()
        store = open_undecrypted(parsed, world_of(workers))
        objects, found = 0, list[str]()
        try:
            async for key, its_key_id in keys_of_objects(store):
                objects += 1
                if its_key_id == key_id:
                    found.append(key)
                progress.show(f"{objects} objects, {len(found)} under key {key_id}")
        finally:
            progress.done()
            await store.close()
            workers.close()
        return Under(objects, len(found), found[0] if found else "")

    return asyncio.run(run())


def rewrap(url: str, *, change: bool, as_json: bool) -> int:
    """Rewrap all objects; without `change` only count them."""
    parsed = bucket_url_of(url)
    tally, progress, ids = Tally(), ProgressLine(), set[str]()

    async def run() -> None:
        workers = ThreadWorkers()
        with tempfile.TemporaryDirectory(prefix="thermocline-rewrap-") as scratch:
            rewrapper = open_rewrapper(parsed, world_of(workers), scratch)
            ids.update(rewrapper.key_ids)
            try:
                async for one in rewrapper.run(change=change):
                    tally.add(one)
                    progress.show(f"{sum(tally.outcomes.values())} objects: {one.key}")
                    if as_json or change or one.outcome in _SHOWN_DRY:
                        _print(one, progress, as_json=as_json)
            finally:
                progress.done()
                await rewrapper.close()
                workers.close()

    asyncio.run(run())
    if as_json:
        for kind, count in tally.outcomes.items():
            print(json_line({"outcome": kind.value, "objects": count}))
        for key, count in tally.keys.items():
            print(json_line({"was_under": key, "objects": count}))
        for key, count in tally.missing.items():
            print(json_line({"missing_key": key, "objects": count}))
    else:
        _print_sums(tally, ids, change=change)
    return Exit.FINDINGS if tally.left else Exit.DONE


def _print(one: Rewrapped, progress: ProgressLine, *, as_json: bool) -> None:
    if one.outcome in _QUIET or (one.outcome in _SUMMED and not as_json):
        return
    progress.done()
    if as_json:
        print(json_line({"key": one.key, "outcome": one.outcome.value, "was_under": one.was_under}))
    else:
        print(f"{one.outcome.value:10} {one.key}" + (f": {one.detail}" if one.detail else ""))


def _print_sums(tally: Tally, ids: Collection[str], *, change: bool) -> None:
    """`ids`: the ids of the keys in the file."""
    if change:
        counts = ", ".join(f"{count} {kind.value}" for kind, count in tally.outcomes.items() if kind not in _SUMMED)
        if counts or not tally.left:
            print(f"{counts or 'no objects'}" + ("" if tally.left else ": only the active key is needed now"))
    else:
        for key, count in sorted(tally.keys.items(), key=lambda item: item[0] or ""):
            print(f"{count} objects " + ("not encrypted" if key is None else f"under key {key}"))
    for key, count in sorted(tally.missing.items()):
        where = "which is not in the file" if key not in ids else "but the file has another key under that id"
        print(f"{count} objects under key {key}, {where}")
    if plain := tally.outcomes[Outcome.PLAIN]:
        print(
            f"{plain} {Outcome.PLAIN.value}: if they are older than the encryption, `thermocline key set FILE --plain "
            "accept` lets a rewrap encrypt them; otherwise they were replaced or cut off: `thermocline bucket verify`"
        )
    if not change:
        print("this was a dry run; leave out --dry-run")
