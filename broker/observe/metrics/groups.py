"""Consumer groups in `/metrics`: how many, in which state, and how far behind.

Owns the names of these metrics. Always true: what a scrape holds is bounded by the survey, not by what clients commit.
Must not know how a survey is made (`broker.groups.lag`).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from broker.groups.lag import SHOWN_MAX, Survey
from broker.groups.machine.events import GroupState
from broker.observe.metrics.families import gauge, gauges


def group_metrics(survey: Survey) -> Iterator[Metric]:
    """By state, and by position."""
    yield gauges(
        "groups",
        "consumer groups by state; Empty ones have no members now",
        ["state"],
        {(state.value,): survey.states[state] for state in GroupState},
    )
    yield gauges(
        "group_lag",
        "records between what a group committed and the end of the partition that consumers see; "
        f"of more than {SHOWN_MAX} positions those that lag most (thermocline_group_positions counts all)",
        ["group", "topic", "partition"],
        {(group_id, topic, str(partition)): records for records, group_id, topic, partition in survey.shown},
    )
    yield gauge(
        "group_positions",
        "partitions that groups committed a position in, shown in thermocline_group_lag or not",
        survey.positions,
    )
