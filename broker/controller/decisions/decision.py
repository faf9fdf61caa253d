"""Interface of the controller's deciders: pure functions from an image to records and an answer.

A decider refuses with an ApiError in Kafka's code and words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

import msgspec

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_content import IMAGE_BYTES_MAX
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord

R = TypeVar("R", covariant=True)
T = TypeVar("T")


class Decision(msgspec.Struct, Generic[R], frozen=True):
    """The result of a decider. `records` (none: nothing changes) are committed before `answer` is given."""

    records: tuple[MetadataRecord, ...]
    answer: R


Decider: TypeAlias = Callable[[ClusterImage], Decision[T]]
"""Raises ApiError, or the errors of `broker.config`."""


Charge: TypeAlias = Callable[[int], None]
"""Counts the partitions that a valid change creates or deletes against its client's quota (KIP-599). A change that is
decided again is not counted again. Raises ApiError THROTTLING_QUOTA_EXCEEDED.
"""


def free(_: int) -> None:
    """`Charge` without a quota."""


class MetadataWriter(Protocol):
    """Runs deciders. Implemented by the commit queue; a read-only broker refuses."""

    @property
    def epoch(self) -> int:
        """The controller epoch; −1: none."""

    @property
    def image_bytes(self) -> int:
        """Approximate size of the image in the bucket."""

    async def decide(self, decider: Decider[T], rows: int = 0) -> T: ...


def check_room(image_bytes: int) -> None:
    """Raise ApiError if the image is too large. Called before topics or configs are added. `image_bytes`: the size of
    the committed image."""
    if image_bytes > IMAGE_BYTES_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"the cluster's metadata takes {image_bytes >> 20} MiB, and at most {IMAGE_BYTES_MAX >> 20} MiB are "
            "allowed: delete topics, or configs of topics",
        )


def not_controller() -> ApiError:
    """The error if another broker is the controller, in Kafka's words."""
    return ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


class RemoteMetadataWriter:
    """`MetadataWriter` of a broker that forwarded a request and does not know whether the request arrived. The broker
    makes no decision itself, even if it is the controller now."""

    epoch = -1
    image_bytes = 0

    async def decide(self, decider: Decider[T], rows: int = 0) -> T:
        raise not_controller()
