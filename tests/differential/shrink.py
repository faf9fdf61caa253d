"""A difference made small: fewer steps, fewer frames, as long as the brokers still differ; then told in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from tests.differential.history import Burst, Cut, Step, draw, site
from tests.differential.run import PER_SITE, Difference, run_site

TRIALS_MAX = 150


def kind_of(failure: BaseException) -> str:
    """What differs, without where: a smaller history has to differ in the same."""
    if isinstance(failure, Difference):
        return failure.found[0].partition(":\n")[0].rpartition(", ")[2]
    return type(failure).__name__


def _differs(seed: int | str, steps: Sequence[Step], kind: str) -> bool:
    try:
        run_site(seed, (0,), given=steps)
    except Exception as failure:  # noqa: BLE001 - any failure may be what is looked for
        return kind_of(failure) == kind
    return False


def _smaller(steps: list[Step]) -> Iterator[list[Step]]:
    for at in range(len(steps) - 1, -1, -1):
        yield steps[:at] + steps[at + 1 :]
    for at, step in enumerate(steps):
        if not isinstance(step, Burst):
            continue
        frames = step.frames
        if len(frames) > 3:
            for half in (frames[: len(frames) // 2], frames[len(frames) // 2 :]):
                yield [*steps[:at], replace(step, frames=half), *steps[at + 1 :]]
        for number in range(len(frames)):
            yield [*steps[:at], replace(step, frames=frames[:number] + frames[number + 1 :]), *steps[at + 1 :]]
        if step.cut is not Cut.AT_ONCE or step.turns:
            yield [*steps[:at], replace(step, cut=Cut.AT_ONCE, turns=False), *steps[at + 1 :]]


def shrink(steps: list[Step], differs: Callable[[list[Step]], bool], trials: int = TRIALS_MAX) -> list[Step]:
    """A smaller list that `differs` as well."""
    shrinks = True
    while shrinks and trials > 0:
        shrinks = False
        for fewer in _smaller(steps):
            trials -= 1
            if trials <= 0:
                break
            if differs(fewer):
                steps, shrinks = fewer, True
                break
    return steps


def told(seed: int | str, failure: BaseException, trials: int = TRIALS_MAX) -> str:
    """How to repeat it, and the least that shows it."""
    number = getattr(failure, "history", -1)
    words = [f"{type(failure).__name__}: {failure}", f"python -m tests.differential --site {seed}"]
    if number < 0:  # at the end of all of them
        words[1] += f" --histories {getattr(failure, 'histories', PER_SITE)}"
    else:
        steps = draw(site(Random(f"site/{seed}")), f"{seed}/{number}")
        kind = kind_of(failure)
        if _differs(seed, steps, kind):
            words[1] += f" --history {number}"
            steps = shrink(steps, lambda fewer: _differs(seed, fewer, kind), trials)
            try:
                run_site(seed, (0,), given=steps)
            except Exception as least:  # noqa: BLE001 - as above
                words.append(f"the least of it: {least}")
        else:
            words.append(f"history {number}, after those before it")
        words += map(in_words, steps)
    return "\n  ".join(words)


def in_words(step: Step) -> str:
    if not isinstance(step, Burst):
        return f"- {step.kind.value} {step.value} {step.topic}-{step.index}"
    lines = [f"- connection {step.connection}, {step.cut.value}, seed {step.seed}{', turns' if step.turns else ''}:"]
    for frame in step.frames:
        parts = ", ".join(
            f"{part.topic[:20]}-{part.index}: {'null' if part.batch is None else len(part.batch)}"
            for part in frame.parts
        )
        lines.append(
            f"    {len(frame.data)} bytes, v{frame.version} acks={frame.acks} #{frame.correlation_id} "
            f"[{parts}] {frame.label}"
        )
    return "\n  ".join(lines)
