"""`bucket rewrap`: encrypt the data keys of a bucket's objects with the active key, and list the keys that are still
needed. Exit 5 when an object could not be rewrapped.
"""

from __future__ import annotations

import asyncio
import tempfile

from coldstore.encryption.rewrap import Outcome, Rewrapped, Tally
from coldstore.stores.opening import open_rewrapper
from seams.loop.workers import ThreadWorkers
from thermocline.cli.bucket.reading import bucket_url_of, world_of
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.output import ProgressLine, json_line

_QUIET = (Outcome.CURRENT, Outcome.FOREIGN)


def rewrap(url: str, *, change: bool, as_json: bool) -> int:
    """Rewrap all objects; without `change` only count them."""
    parsed = bucket_url_of(url)
    tally, progress = Tally(), ProgressLine()

    async def run() -> None:
        workers = ThreadWorkers()
        with tempfile.TemporaryDirectory(prefix="thermocline-rewrap-") as scratch:
            rewrapper = open_rewrapper(parsed, world_of(workers), scratch)
            try:
                async for one in rewrapper.run(change=change):
                    tally.add(one)
                    progress.show(f"{sum(tally.outcomes.values())} objects: {one.key}")
                    if one.outcome not in _QUIET and (as_json or change):
                        progress.done()
                        _print(one, as_json=as_json)
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
    else:
        _print_sums(tally, change=change)
    return Exit.FINDINGS if tally.left else Exit.DONE


def _print(one: Rewrapped, *, as_json: bool) -> None:
    if as_json:
        print(json_line({"key": one.key, "outcome": one.outcome.value, "was_under": one.was_under}))
    else:
        print(f"{one.outcome.value:10} {one.key}" + (f": {one.detail}" if one.detail else ""))


def _print_sums(tally: Tally, *, change: bool) -> None:
    if not change:
        for key, count in sorted(tally.keys.items(), key=lambda item: item[0] or ""):
            print(f"{count} objects " + ("not encrypted" if key is None else f"under key {key}"))
        print("this was a dry run; leave out --dry-run")
        return
    counts = ", ".join(f"{count} {kind.value}" for kind, count in tally.outcomes.items())
    print(f"{counts or 'no objects'}" + ("" if tally.left else ": only the active key is needed now"))
