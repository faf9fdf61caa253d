"""Every fuzz target, without a fuzzer: its seeds, the kept corpus, and mutations of both by hypothesis.

`make fuzz` does the same with coverage guidance and 10⁷ executions; this keeps every old finding found.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.kept import kept
from tests.fuzz.targets import answers_in_proportion, load, names, produce_runs

MUTANTS = 40
quickly = settings(deadline=None, max_examples=MUTANTS, suppress_health_check=list(HealthCheck), database=None)


@st.composite
def mutants(draw: st.DrawFn, inputs: list[bytes]) -> bytes:
    """An input with a few bytes set, cut, doubled or replaced by a lie about a length."""
    data = bytearray(draw(st.sampled_from(inputs)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                data[at : at + 4] = draw(st.sampled_from((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0")))
            case 2:
                del data[at : at + draw(st.sampled_from((1, 2, 8, 40)))]
            case 3:
                data[at:at] = data[at : at + draw(st.sampled_from((1, 8)))]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(data)


@pytest.fixture(scope="module", autouse=True)
def what_targets_keep() -> Iterator[None]:
    """Some keep a broker from input to input."""
    yield
    answers_in_proportion.close()
    produce_runs.close()


@pytest.mark.parametrize("name", names())
def test_seeds_and_corpus_find_nothing(name: str) -> None:
    """What was ever worth keeping, and every past finding among it, still raises nothing."""
    target = load(name)
    seeds = target.seeds()
    assert seeds
    for data in (*seeds, *kept(name).values(), b"", b"\0", b"\xff" * 70):
        target.run(data)


@pytest.mark.parametrize("name", names())
def test_mutated_seeds_find_nothing(name: str) -> None:
    """Bytes set, cut, doubled, lengths that lie."""
    target = load(name)

    @settings(quickly, max_examples=getattr(target, "MUTANTS", MUTANTS))
    @given(mutants(target.seeds()))
    def hold(data: bytes) -> None:
        target.run(data)

    hold()
