"""`python -m tests.fuzz.proportion`: the dearest frames of every API, by the clock.

Every recipe there is (half an hour; `--newest` takes the newest version of each API): the longest step on the loop in
CPU time, best of two, and memory. The dearest of each API go to docs/reliability, with `--keep` into the corpus.
`--only Fetch,Metadata`. Exit code 1 when one of them is out of proportion.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass

from broker.wire.apis import APIS, Api
from tests.fuzz.kept import keep, kept
from tests.fuzz.targets.answers_in_proportion import NAME, packed
from tests.reliability.results import merge_rows
from tests.support.fast_loop import run_fast
from tests.support.wire.hostile_frames import Recipe, recipes, versions
from tests.support.wire.proportion import BYTES_MAX, CALLS_MAX, HOLD_S_MAX, Cost, Crowd


@dataclass(frozen=True)
class Dearest:
    """The dearest frame of an API."""

    recipe: Recipe
    cost: Cost


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.proportion", description=__doc__)
    parser.add_argument("--only", default="", help="APIs, separated by commas")
    parser.add_argument("--newest", action="store_true", help="only the newest version of each")
    parser.add_argument("--keep", action="store_true", help="put the dearest frames into the corpus")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name]
    rows = []
    for api in APIS.values():
        if chosen and api.name not in chosen:
            continue
        found = run_fast(_dearest(api, newest=options.newest), timeout_s=1e9)
        rows.append(_row(api, found))
        print(
            "{api:30}{hold_ms:8.1f} ms{calls:>10,} calls{memory_mib:8.1f} MiB  {frame}".format(**rows[-1]), flush=True
        )
        if options.keep:
            keep(NAME, {**kept(NAME), api.name: packed(found.recipe)})
    merge_rows("proportion", "python -m tests.fuzz.proportion", "api", rows)
    over = [row for row in rows if row["calls"] > CALLS_MAX or row["memory_mib"] > BYTES_MAX >> 20]
    late = [row for row in rows if row["hold_ms"] > HOLD_S_MAX * 1000]
    print(f"{len(rows)} APIs; out of proportion: {len(over)}; above 50 ms by this machine's clock: {len(late)}")
    return 1 if over or late else 0


async def _dearest(api: Api, *, newest: bool) -> Dearest:
    """By the calls of a step, which no other load disturbs."""
    crowd = await Crowd.make()
    worst: Dearest | None = None
    for recipe in recipes(api):
        if newest and recipe.version != versions(api)[-1]:
            continue
        if not crowd.is_whole():
            crowd = await Crowd.make()
        cost = await crowd.cost(recipe, memory=False)
        if worst is None or cost.calls > worst.cost.calls:
            worst = Dearest(recipe, cost)
    assert worst is not None
    crowd = crowd if crowd.is_whole() else await Crowd.make()
    worst.cost.bytes = (await crowd.cost(worst.recipe, count_calls=False)).bytes
    gc.collect()
    gc.freeze()  # what the broker holds is not the frame's cost
    held = []
    for _ in range(2):
        crowd = crowd if crowd.is_whole() else await Crowd.make()
        held.append((await crowd.cost(worst.recipe, count_calls=False, memory=False, clock=True)).hold_s)
    gc.unfreeze()
    worst.cost.hold_s = min(held)
    return worst


def _row(api: Api, found: Dearest) -> dict[str, object]:
    return {
        "api": api.name,
        "frame": str(found.recipe),
        "hold_ms": round(found.cost.hold_s * 1000, 1),
        "calls": found.cost.calls,
        "memory_mib": round(found.cost.bytes / (1 << 20), 1),
        "answer_bytes": found.cost.answer_bytes,
        "machine_ns": _machine_ns(),
    }


def _machine_ns() -> float:
    """CPU time of one round of a loop that does nothing: how fast, and how busy, this machine is."""
    began = time.thread_time()
    for _ in range(1_000_000):
        pass
    return round((time.thread_time() - began) * 1000, 1)


if __name__ == "__main__":
    sys.exit(main())
