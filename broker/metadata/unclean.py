"""Whether a replica that may lack committed records may lead: unclean.leader.election.enable as the image has it. Pure.

Owns the one reading of that config: two brokers at one position read the same; no file of a broker is asked. Must not
know who asks. Source: KIP-106.
"""

from __future__ import annotations

from typing import Final

from broker.metadata.image import ClusterImage, Topic

CONFIG: Final = "unclean.leader.election.enable"
DEFAULT: Final = "false"
"""As in Kafka, where nobody says anything."""


def is_unclean_election_allowed(topic: Topic, image: ClusterImage) -> bool:
    """As set on the topic, or else on all brokers, or else not."""
    return (topic.configs.get(CONFIG) or image.cluster_configs.get(CONFIG) or DEFAULT).lower() == "true"
