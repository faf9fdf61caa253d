"""What a command names and the broker does not have: one sentence each, with where to look."""

from __future__ import annotations

from thermocline.cli.terminal.outcome import CommandFailed


def no_topic(topic: str) -> CommandFailed:
    return CommandFailed(f"there is no topic {topic}; see `thermocline topic list`")


def no_partition(topic: str, partition: int, count: int) -> CommandFailed:
    """`count`: of the topic's partitions."""
    return CommandFailed(f"topic {topic} has no partition {partition}; it has {count}, from 0")


def no_group(group: str) -> CommandFailed:
    return CommandFailed(f"there is no group {group}; see `thermocline group list`")
