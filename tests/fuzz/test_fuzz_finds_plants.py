"""The targets are not blind: off-by-one bugs put into parsers are found, here by a plain mutator in seconds.

All of `plants.PLANTS` under Atheris, with the executions it took: `python -m tests.fuzz --planted`.
"""

from __future__ import annotations

import random

import pytest

from tests.fuzz.plants import PLANTS, Plant, planted
from tests.fuzz.targets import load

EXECUTIONS_MAX = 6000
GUIDED = (
    "segment_scan",
    "object_keys",
    "producer_snapshots",
    "offset_checkpoints",
    "records",
)  # need coverage, or luck
QUICK = [plant for plant in PLANTS if plant.target not in GUIDED]


def mutant(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(3):
            case 0:
                data[at : at + 1] = bytes([(data[at] + rng.choice((1, -1))) % 256]) if at < len(data) else b"\0"
            case 1:
                del data[at : at + rng.choice((1, 3))]
            case _:
                data[at:at] = rng.randbytes(1)
    return bytes(data)


@pytest.mark.parametrize("plant", QUICK, ids=lambda plant: plant.name.replace(" ", "-"))
def test_a_planted_off_by_one_is_found(plant: Plant) -> None:
    """Wrong, the target finds it; right again, the same inputs find nothing."""
    target = load(plant.target)
    seeds = target.seeds()
    rng = random.Random(plant.name)
    tried: list[bytes] = []
    with planted(plant):
        for _ in range(EXECUTIONS_MAX):
            tried.append(mutant(rng, seeds))
            try:
                target.run(tried[-1])
            except (AssertionError, ValueError):  # or what our own code says to a broken invariant
                break
        else:
            pytest.fail(f"not found in {EXECUTIONS_MAX} executions")
    target.run(tried[-1])


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name.replace(" ", "-"))
def test_every_plant_still_applies(plant: Plant) -> None:
    """Its line stands where it was."""
    with planted(plant):
        pass
