"""Audit lines (S12): principal, action, address, and the reason of a refusal.

Each denial, failed login, and change of ACLs, credentials, quotas and configs has one line: `event=denied
principal="User:alice" address="10.0.0.7" what="Write on Topic:LITERAL:orders" why="no ACL allows it"`. Values are JSON
strings, so that a name from a client cannot start a new line. No value is a secret: callers pass names, not passwords,
keys or values of sensitive configs.

A kind of event writes at most `LINES_AT_ONCE` lines for a principal at once, and one more every `SECONDS_A_LINE`. A
failed login has no principal yet, so the limit is that of its host; all hosts together have ten times the limit.
Suppressed lines are counted, and the next line of that kind and principal has the count (`suppressed=12`). `/metrics`
counts every event, also a suppressed one. At most `PRINCIPALS_MAX` pairs of kind and principal are remembered.

The lines go to the logger `audit`, at level INFO for changes and WARNING for the rest. This module knows neither
requests nor ACLs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

LOGGER: Final = "audit"
LINES_AT_ONCE: Final = 10
SECONDS_A_LINE: Final = 6.0  # 10 lines a minute, as for other log lines
PRINCIPALS_MAX: Final = 1_000
_HOSTS: Final = 10  # hosts whose failed logins have all their lines at once
CHANGES_SHOWN_MAX: Final = 20  # changes of one request
_SHOWN_CHARS_MAX: Final = 300  # characters of one value

log = logging.getLogger(LOGGER)

T = TypeVar("T")


class AuditEvent(StrEnum):
    """Kind of an event. It labels a counter, so the set is closed."""

    DENIED = "denied"  # the authorizer refused a request, or part of it
    LOGIN_FAILED = "login-failed"
    LOGIN = "login"  # counted in `/metrics`; never a line
    ACLS = "acls"  # ACLs were created or deleted
    CREDENTIALS = "credentials"  # SCRAM credentials were set or deleted
    QUOTAS = "quotas"
    CONFIGS = "configs"


_REFUSALS: Final = frozenset({AuditEvent.DENIED, AuditEvent.LOGIN_FAILED})
_COUNTED_ONLY: Final = frozenset({AuditEvent.LOGIN})


class _Lines:
    """The lines that one kind of event may still write for one principal: a token bucket. `times`: of how many
    principals together."""

    __slots__ = ("at_s", "left", "suppressed", "times")

    def __init__(self, now_s: float, times: int = 1) -> None:
        self.at_s = now_s
        self.left = float(LINES_AT_ONCE * times)
        self.suppressed = 0
        self.times = times

    def take(self, now_s: float) -> bool:
        self.left += (now_s - self.at_s) / SECONDS_A_LINE * self.times
        self.left = min(self.left, float(LINES_AT_ONCE * self.times))
        self.at_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Audit:
    """Writes audit lines. `counts`: events by kind since the start; `suppressed`: those without a line."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lines: dict[tuple[AuditEvent, str], _Lines] = {}  # least recently used first
        self._failed_logins = _Lines(monotonic_s(), _HOSTS)
        self.counts: dict[AuditEvent, int] = dict.fromkeys(AuditEvent, 0)
        self.suppressed = 0

    def note(self, event: AuditEvent, principal: str, address: str, what: str, why: str = "", count: int = 1) -> None:
        """Note that `principal` (`User:name`) did `what`, or tried to, from `address` (as `Peer.address`).

        `why`: the reason of a refusal, or empty. `count`: the number of events that this call stands for, for example
        the topics that one request may not read; `what` then names one of them.
        """
        self.counts[event] += count
        if event in _COUNTED_ONLY:
            return
        is_login = event is AuditEvent.LOGIN_FAILED
        now_s, key = self._monotonic_s(), (event, address.rpartition(":")[0] if is_login else principal)
        lines = self._lines.pop(key, None) or _Lines(now_s)
        if len(self._lines) >= PRINCIPALS_MAX:
            self._lines.pop(next(iter(self._lines)))
        self._lines[key] = lines
        if not lines.take(now_s) or (is_login and not self._failed_logins.take(now_s)):
            lines.suppressed += 1
            self.suppressed += 1
            return
        text = f"event={event.value} principal={_shown(principal)} address={_shown(address)} what={_shown(what)}"
        if why:
            text += f" why={_shown(why)}"
        if count > 1:
            text += f" count={count}"
        if lines.suppressed:
            text += f" suppressed={lines.suppressed}"
            lines.suppressed = 0
        log.log(logging.WARNING if event in _REFUSALS else logging.INFO, "%s", text)

    def note_changes(
        self, event: AuditEvent, principal: str, address: str, changes: Sequence[T], shown: Callable[[T], str]
    ) -> None:
        """Write lines for the changes of one request: the first ones by their text, the others as a count."""
        for change in changes[:CHANGES_SHOWN_MAX]:
            self.note(event, principal, address, shown(change))
        if (rest := len(changes) - CHANGES_SHOWN_MAX) > 0:
            self.note(event, principal, address, f"{rest} more changes by the same request", count=rest)


def _shown(value: str) -> str:
    if len(value) > _SHOWN_CHARS_MAX:
        value = f"{value[:_SHOWN_CHARS_MAX]}…"
    return json.dumps(value)
