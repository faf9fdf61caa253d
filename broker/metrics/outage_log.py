"""A store that does not answer: since when, how often it was asked, and which of the failures the log tells.

Owns the count of one kind of call. Always true: the first failure is told at once, the following ones after 10 s, 20 s,
40 s … and then every five minutes, so that an outage of a night is a page of log and not a book; the end of what was
told is told too. Must not know who calls whom, nor how long to wait between two tries.
"""

from __future__ import annotations

from typing import Final, Protocol

from broker.config.units import show_duration

TELL_AGAIN_S: Final = 10.0
TELL_AGAIN_MAX_S: Final = 300.0
WHAT_TO_DO: Final = (
    "check the URL, the credentials and the network; it goes on trying and serves as soon as the bucket answers"
)


class Monotonic(Protocol):
    """The part of `seams.clock.Clock` that is needed."""

    def monotonic_s(self) -> float: ...


class OutageLog:
    """`failure` is empty while all is well."""

    def __init__(self, clock: Monotonic) -> None:
        self._clock = clock
        self._since_s = 0.0
        self._tell_at_s = float("-inf")
        self._tell_again_s = TELL_AGAIN_S
        self._told = False
        self.tries = 0
        self.failure = ""

    def failed(self, failure: Exception) -> bool:
        """Another call failed; whether the log should say so. One that follows a told one soon waits its turn, even
        when a call succeeded in between: a store that fails every other call is no flood either."""
        now_s = self._clock.monotonic_s()
        if not self.tries:
            self._since_s = now_s
            self._told = False
        self.tries += 1
        self.failure = str(failure) or "timed out"
        if now_s < self._tell_at_s:
            return False
        quiet = now_s > self._tell_at_s + TELL_AGAIN_MAX_S
        self._tell_again_s = TELL_AGAIN_S if quiet else min(self._tell_again_s * 2, TELL_AGAIN_MAX_S)
        self._tell_at_s = now_s + self._tell_again_s
        self._told = True
        return True

    def answered(self) -> str:
        """A call succeeded: for how long none did, as `show_duration` says it; empty when nobody was told of it."""
        lasted = self.lasted if self.tries and self._told else ""
        self.tries, self.failure = 0, ""
        return lasted

    @property
    def seconds(self) -> float:
        """Since the first failure; 0 while all is well."""
        return self._clock.monotonic_s() - self._since_s if self.tries else 0.0

    @property
    def lasted(self) -> str:
        """`1m 3s`, whole seconds."""
        return show_duration(int(self.seconds) * 1000)

    def __str__(self) -> str:
        return f"{self.failure}; {self.tries} {'try' if self.tries == 1 else 'tries'} in {self.lasted}"
