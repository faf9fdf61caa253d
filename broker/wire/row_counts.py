"""Counts how often a request names each topic or resource.

A topic or resource that two rows name is not changed. The authorizer does not check such rows, because the handler
refuses them: that is safe only if the authorizer and the handler count by the same key, so both count here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from broker.wire import messages as wire


class NamedResource(Protocol):
    """A row of AlterConfigs or IncrementalAlterConfigs."""

    resource_type: int
    resource_name: str


def topic_counts(request: wire.CreateTopicsRequest | wire.CreatePartitionsRequest) -> Counter[str]:
    """Number of occurrences of each name."""
    return Counter(topic.name for topic in request.topics)


def deletion_counts(request: wire.DeleteTopicsRequest) -> Counter[tuple[str | None, bytes]]:
    """Number of occurrences of each pair of name and id; the id is zero if a row has only a name. A row with name and
    id is no duplicate of a row with the name alone: the handler refuses the first and carries out the second. Ids count
    by their bytes, because a client could choose many ids of which Python's hash is the same."""
    return Counter(
        [
            *((topic.name, topic.topic_id.bytes) for topic in request.topics),
            *((name, wire.ZERO_UUID.bytes) for name in request.topic_names),  # clients before version 6
        ]
    )


def resource_counts(resources: Iterable[NamedResource]) -> Counter[tuple[int, str]]:
    """Number of occurrences of each pair of kind and name."""
    return Counter((resource.resource_type, resource.resource_name) for resource in resources)
