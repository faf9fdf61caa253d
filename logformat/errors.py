"""Base classes of errors, one for each reaction of the caller.

Library errors are mapped to these classes where they occur; `broker.errors` maps these classes to Kafka's error codes.
A message names the failure, the object and the remedy.
"""

from __future__ import annotations


class ThermoclineError(Exception):
    """Root of every error this project raises on purpose."""


class Retryable(ThermoclineError):
    """Temporary failure without an effect: the same call may succeed later."""


class Fenced(ThermoclineError):
    """Another owner has a higher epoch: stop acting, do not retry."""


class InvalidRequest(ThermoclineError):
    """The request can never be served in this form: change it."""


class Corrupt(ThermoclineError):
    """Bytes differ from those written: refuse or repair, never truncate acknowledged data."""


class StorageFailed(ThermoclineError):
    """The disk refused a write or a sync (EIO, ENOSPC): the log decides whether it is full or failed."""
