"""Kinds of failure, each named by what the caller must do.
Library errors are mapped to these where they occur; broker.errors makes Kafka's error codes from them. A message says
what happened, to what, and what to do."""

from __future__ import annotations


class ThermoclineError(Exception):
    """Root of every error this project raises on purpose."""


class Retryable(ThermoclineError):
    """Nothing was decided and nothing is broken: the same call may succeed later."""


class Fenced(ThermoclineError):
    """Another owner has a higher epoch: stop acting, do not retry."""


class InvalidRequest(ThermoclineError):
    """The request can never be served as it is: change it."""


class Corrupt(ThermoclineError):
    """Bytes are not what was written: refuse or repair, never truncate acknowledged data."""


class StorageFailed(ThermoclineError):
    """The disk refused a write or a sync (EIO, ENOSPC): the log decides between full and failed."""
