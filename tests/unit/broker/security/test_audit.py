"""Audit lines: one for each event, limited by kind and principal, nothing a client can forge."""

from __future__ import annotations

import logging

import pytest

from broker.security.audit import (
    CHANGES_SHOWN_MAX,
    LINES_AT_ONCE,
    LOGGER,
    PRINCIPALS_MAX,
    SECONDS_A_LINE,
    Audit,
    AuditEvent,
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_line_says_who_from_where_what_and_why(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Audit(clock).note(AuditEvent.DENIED, "User:alice", "10.0.0.7:5432", "Read on Topic:LITERAL:a", "no ACL allows it")
    assert lines(caplog) == [
        'event=denied principal="User:alice" address="10.0.0.7:5432" what="Read on Topic:LITERAL:a" '
        'why="no ACL allows it"'
    ]


def test_a_name_begins_no_line_and_ends_no_value(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Audit(clock).note(AuditEvent.DENIED, 'User:x"\nevent=login', "", "a" * 10_000)
    (line,) = lines(caplog)
    assert "\n" not in line and r"\"\nevent=login" in line and len(line) < 500


def test_a_storm_of_one_principal_silences_only_itself(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit = Audit(clock)
    for _ in range(LINES_AT_ONCE + 5):
        audit.note(AuditEvent.DENIED, "User:mallory", "", "x")
    audit.note(AuditEvent.DENIED, "User:alice", "", "x")
    audit.note(AuditEvent.ACLS, "User:mallory", "", "x")
    assert len(lines(caplog)) == LINES_AT_ONCE + 2
    assert audit.counts[AuditEvent.DENIED] == LINES_AT_ONCE + 6 and audit.suppressed == 5
    clock.now_s += SECONDS_A_LINE
    audit.note(AuditEvent.DENIED, "User:mallory", "", "x")
    audit.note(AuditEvent.DENIED, "User:mallory", "", "x")
    assert lines(caplog)[-1].endswith(" suppressed=5") and len(lines(caplog)) == LINES_AT_ONCE + 3


def test_ever_new_principals_cost_bounded_memory(clock: Clock) -> None:
    audit = Audit(clock)
    for number in range(PRINCIPALS_MAX + 50):
        audit.note(AuditEvent.DENIED, f"User:{number}", "", "x")
    assert len(audit._lines) == PRINCIPALS_MAX


def test_a_login_is_counted_and_not_written(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit = Audit(clock)
    audit.note(AuditEvent.LOGIN, "User:alice", "", "SCRAM-SHA-256")
    assert audit.counts[AuditEvent.LOGIN] == 1 and not lines(caplog)


def test_several_events_of_one_request_are_one_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit = Audit(clock)
    audit.note(AuditEvent.DENIED, "User:alice", "", "x", count=7)
    assert audit.counts[AuditEvent.DENIED] == 7
    assert lines(caplog)[0].endswith(" count=7")


def test_a_request_with_many_changes_counts_all_and_shows_some(clock: Clock) -> None:
    audit, shown = Audit(clock), []
    changes = list(range(CHANGES_SHOWN_MAX + 5))
    audit.note_changes(AuditEvent.QUOTAS, "User:alice", "", changes, lambda change: shown.append(change) or "x")
    assert audit.counts[AuditEvent.QUOTAS] == len(changes) and shown == changes[:CHANGES_SHOWN_MAX]


def test_failed_logins_of_one_host_silence_only_that_host(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: all failed logins are those of User:ANONYMOUS, and shared its lines. Whoever failed often as nobody
    hid his own attempts, from another host, to log in as admin."""
    audit = Audit(clock)
    for attempt in range(1_000):
        audit.note(AuditEvent.LOGIN_FAILED, "User:ANONYMOUS", f"10.6.6.6:{attempt}", "log in as User:nobody")
    audit.note(AuditEvent.LOGIN_FAILED, "User:ANONYMOUS", "10.0.0.7:5432", "log in as User:admin")
    assert len(lines(caplog)) == LINES_AT_ONCE + 1
    assert "User:admin" in lines(caplog)[-1]


def test_failed_logins_of_many_hosts_are_limited_together(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(clock)
    for host in range(1_000):
        audit.note(AuditEvent.LOGIN_FAILED, "User:ANONYMOUS", f"2001:db8::{host:x}:5432", "log in as User:admin")
    assert len(lines(caplog)) == 10 * LINES_AT_ONCE
    assert audit.suppressed == 1_000 - 10 * LINES_AT_ONCE
    clock.now_s += SECONDS_A_LINE
    for host in range(1_000):
        audit.note(AuditEvent.LOGIN_FAILED, "User:ANONYMOUS", f"2001:db8::{host:x}:5432", "log in as User:admin")
    assert len(lines(caplog)) == 11 * LINES_AT_ONCE
