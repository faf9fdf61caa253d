"""Two judgements that a topic's own values and the broker's defaults for topics share.

Owns what Thermocline does not serve yet and the tie between local and total retention. Pure; knows no source of values.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.values import InvalidConfig


def judge_served(cleanup_policy: Sequence[str], compression_type: str | None) -> None:
    """Refuse what Kafka knows and Thermocline does not serve yet, saying so."""
    if "compact" in cleanup_policy:
        raise InvalidConfig(
            "Invalid value compact for configuration cleanup.policy: compaction is not served by Thermocline yet; "
            "use cleanup.policy=delete"
        )
    if compression_type not in (None, "producer"):
        raise InvalidConfig(
            f"Invalid value {compression_type} for configuration compression.type: batches are kept as the client "
            "compressed them, so only producer is served; set the client's own compression.type"
        )


def judge_local_retention(unit: str, local: int, retention: int) -> None:
    """Local retention lies inside total retention; `unit` is `ms` or `bytes`, -2 follows, -1 is for ever."""
    if retention < 0 or local == -2:
        return
    if local == -1 or local > retention:
        rule = "must not be -1 as" if local == -1 else "must not be more than"
        raise InvalidConfig(
            f"Invalid value {local} for configuration local.retention.{unit}: Value {rule} "
            f"retention.{unit} value is set as {retention}"
        )
