"""Names of an object store's operations, for labels of metrics and for fault scripts."""

from __future__ import annotations

from enum import Enum


class Operation(Enum):
    """One method of `ObjectStore`. The value is its label in metrics and logs."""

    GET = "get"
    GET_IF_CHANGED = "get_if_changed"
    HEAD = "head"
    PUT_SEGMENT = "put_segment"
    PUT_ROOT = "put_root"
    DELETE = "delete"
    LIST = "list"
