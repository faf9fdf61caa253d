"""Log of store outages: start, number of failed calls, and the choice of failures to log.

The first failure is logged at once, later failures after 10 s, 20 s, 40 s … and then every five minutes. The log of an
outage of a whole night thus has about one page. The end of a logged outage is logged too.
"""

from __future__ import annotations

from typing import Final

from broker.config.units import show_duration
from seams.clock import Clock

LOG_AGAIN_S: Final = 10.0
LOG_AGAIN_MAX_S: Final = 300.0
WHAT_TO_DO: Final = (
    "check the URL, the credentials and the network; the broker keeps trying, and serves as soon as the bucket answers"
)


class OutageLog:
    """Failures of one kind of call. `failure` is empty unless the last call failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = 0.0
        self._log_at_s = float("-inf")
        self._log_again_s = LOG_AGAIN_S
        self._told = False
        self.tries = 0
        self.failure = ""

    def failed(self, failure: Exception) -> bool:
        """Count a failed call. True when it should be logged. A failure soon after a logged failure is not logged, even
        if a call succeeded in between: a store that fails every other call must not flood the log.
        """
        now_s = self._clock.monotonic_s()
        if not self.tries:
            self._since_s = now_s
            self._told = False
        self.tries += 1
        self.failure = str(failure) or "timed out"
        if now_s < self._log_at_s:
            return False
        quiet = now_s > self._log_at_s + LOG_AGAIN_MAX_S
        self._log_again_s = LOG_AGAIN_S if quiet else min(self._log_again_s * 2, LOG_AGAIN_MAX_S)
        self._log_at_s = now_s + self._log_again_s
        self._told = True
        return True

    def answered(self) -> str:
        """A call succeeded. Returns the duration of the outage (`show_duration`); empty when none was logged."""
        lasted = self.lasted if self.tries and self._told else ""
        self.tries, self.failure = 0, ""
        return lasted

    @property
    def seconds(self) -> float:
        """Seconds since the first failure; 0 without a failure."""
        return self._clock.monotonic_s() - self._since_s if self.tries else 0.0

    @property
    def lasted(self) -> str:
        """The duration of the outage in whole seconds: `1m 3s`."""
        return show_duration(int(self.seconds) * 1000)

    def __str__(self) -> str:
        return f"{self.failure}; {self.tries} {'try' if self.tries == 1 else 'tries'} in {self.lasted}"
