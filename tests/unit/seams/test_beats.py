"""Services that look now and then wake together."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seams.loop.beats import BEAT_S, Beats

TIMES = st.floats(0.0, 1e7)
PHASES = st.floats(0.0, BEAT_S, exclude_max=True)


@given(TIMES, PHASES, st.sampled_from([BEAT_S, 2 * BEAT_S, 10 * BEAT_S]))
def test_a_beat_comes_after_less_than_a_period_or_one_and_is_one_of_the_shorter_period(
    now_s: float, phase_s: float, period_s: float
) -> None:
    """However large the loop's time is."""
    beats = Beats(phase_s)
    at_s = beats.after(now_s, period_s)
    assert 0 < at_s - now_s <= period_s * 1.00001
    assert beats.after(at_s - BEAT_S / 2) == pytest.approx(at_s, abs=1e-6)


@given(TIMES, PHASES, st.floats(0.001, 10.0))
def test_a_wait_ends_at_a_beat_and_never_late(now_s: float, phase_s: float, wait_s: float) -> None:
    """One too short to meet a beat ends where it is to."""
    beats = Beats(phase_s)
    until_s = beats.until(now_s + wait_s, now_s)
    assert now_s < until_s <= now_s + wait_s + BEAT_S * 1e-5
    if wait_s > BEAT_S:
        assert now_s + wait_s - until_s < BEAT_S * 1.00001


async def test_all_who_wait_wake_in_one_turn() -> None:
    """Whenever each began, and whatever it does in between."""
    loop, beats = asyncio.get_running_loop(), Beats(0.123)
    woken: list[float] = []

    async def service(begins_s: float, period_s: float, takes_s: float) -> None:
        await asyncio.sleep(begins_s)
        for _ in range(8):
            await beats.wait(period_s)
            woken.append(round(loop.time(), 6))
            await asyncio.sleep(takes_s)

    await asyncio.gather(service(0.0, BEAT_S, 0.0), service(0.31, BEAT_S, 0.2), service(0.1, 2 * BEAT_S, 0.01))
    assert len(woken) == 24
    assert all((at_s - 0.123) / BEAT_S == pytest.approx(round((at_s - 0.123) / BEAT_S), abs=1e-3) for at_s in woken)
    assert len(set(woken)) <= 17
