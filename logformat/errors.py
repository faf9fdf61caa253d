"""The few kinds of failure, each named by what the caller must do.

Owns the error vocabulary of the whole house. Library errors are mapped to these at the shell that meets them; Kafka
error codes are made from these in one place (broker.errors). A message says what happened, to what, and what to do.
"""

from __future__ import annotations


class ThermoclineError(Exception):
    """Root of every error this project raises on purpose."""


class Retryable(ThermoclineError):
    """Nothing was decided and nothing is broken: the same call may succeed later."""


class Fenced(ThermoclineError):
    """Somebody with a higher epoch owns this now: stop acting on it, do not retry."""


class InvalidRequest(ThermoclineError):
    """The caller asked for something that can never be served as asked: change the request."""


class Corrupt(ThermoclineError):
    """Bytes are not what they were when written: refuse or repair, never truncate what was acked."""


class StorageFailed(ThermoclineError):
    """The medium refused a write or a sync (EIO, ENOSPC): the log that met it decides between full and failed."""
