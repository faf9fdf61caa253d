"""What the controller decides with: an image goes in, records and an answer come out.

Owns the shape that every decider has, and the one rule that all which adds to the image obey: it has a largest size.
Deciders are pure functions of an image; they refuse with an ApiError in Kafka's code and words, and never see what is
done with their records. Must not know how records are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_content import IMAGE_BYTES_MAX
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord

R = TypeVar("R", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """`records` make it a fact (none: nothing has to change); `answer` is for whoever asked, once it is one."""

    records: tuple[MetadataRecord, ...]
    answer: R


Decider: TypeAlias = Callable[[ClusterImage], Decision[T]]
"""Raises ApiError, or what `broker.config` refuses values with."""


class MetadataWriter(Protocol):
    """Who has deciders decide: the office, or nobody where a broker only reads."""

    @property
    def epoch(self) -> int:
        """The controller epoch; -1: there is none."""

    @property
    def image_bytes(self) -> int:
        """What the image takes in the bucket, about."""

    async def decide(self, decider: Decider[T]) -> T:
        """See `CommitQueue.decide`."""


def check_room(image_bytes: int) -> None:
    """Before topics or configs are added; what takes some away is always welcome. `image_bytes`: as it is kept."""
    if image_bytes > IMAGE_BYTES_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"the cluster's metadata takes {image_bytes >> 20} MiB, at most {IMAGE_BYTES_MAX >> 20} are kept: delete "
            "topics, or configs of topics",
        )


def not_controller() -> ApiError:
    """What whoever asks hears where another broker decides, in Kafka's words."""
    return ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


class RemoteMetadataWriter:
    """`MetadataWriter` of a broker that asked another one, and does not know whether it was heard: it decides nothing
    itself, also where it is the controller by now."""

    epoch = -1
    image_bytes = 0

    async def decide(self, decider: Decider[T]) -> T:
        raise not_controller()
