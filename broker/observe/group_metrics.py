"""Consumer groups in `/metrics`: how many, in which state, and how far behind.

Owns the names of these metrics. Always true: what a scrape holds is bounded by the survey, not by what clients commit.
Must not know how a survey is made (`broker.groups.lag`).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from broker.groups.events import GroupState
from broker.groups.lag import SHOWN_MAX, Survey


class GroupMetrics:
    """A collector of one scrape."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def collect(self) -> Iterator[Metric]:
        survey = self._survey
        states = GaugeMetricFamily(
            "thermocline_groups", "consumer groups by state; Empty ones have no members now", labels=["state"]
        )
        for state in GroupState:
            states.add_metric([state.value], survey.states[state])
        yield states
        lag = GaugeMetricFamily(
            "thermocline_group_lag",
            "records between what a group committed and the end of the partition that consumers see; "
            f"of more than {SHOWN_MAX} positions those that lag most (thermocline_group_positions counts all)",
            labels=["group", "topic", "partition"],
        )
        for records, group_id, topic, partition in survey.shown:
            lag.add_metric([group_id, topic, str(partition)], records)
        yield lag
        yield GaugeMetricFamily(
            "thermocline_group_positions",
            "partitions that groups committed a position in, shown in thermocline_group_lag or not",
            value=survey.positions,
        )
