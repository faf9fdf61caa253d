"""Coroutine tests that a kit runs: inside its house, over its loop, between its brokers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def by(runner: Callable[..., Any] | str, *how: Any, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """The coroutine test below runs as `runner(test, *how, **more)`; `runner` may be the name of a fixture. What the
    runner hands the test are its positional-only parameters; the others are fixtures and parameters, as in every test.
    """

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(test)
        asked = [found for found in signature.parameters.values() if found.kind is not found.POSITIONAL_ONLY]
        if isinstance(runner, str):
            asked.append(inspect.Parameter(runner, inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(test)
        def run(**given: Any) -> None:
            runs = given.pop(runner) if isinstance(runner, str) else runner
            runs(functools.partial(test, **given), *how, **more)

        run.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
        return run

    return decorate
