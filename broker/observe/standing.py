"""A broker's standing: the `conditions`, `cluster`, `read_only` and `blocked` fields of `GET /broker`, read by
`cluster status` and `tier status`."""

from __future__ import annotations

import msgspec

from broker.config.units import show_duration


class LateReplica(msgspec.Struct, frozen=True, gc=False):
    """A replica that lacks records which the leader had half a second ago. `records` and (approximately) `bytes`: the
    amounts that the replica has not flushed; null without a report in this leader epoch. `ms`: time for which the
    replica has been late.
    """

    topic: str
    partition: int
    node: int
    records: int | None
    bytes: int | None
    ms: int


class ReadOnly(msgspec.Struct, frozen=True):
    """A broker that reads the bucket of another cluster (`serve --read-only`).

    * `cluster_id`: the id of that cluster; `version`: applied records of its `cluster.json`, read `age_ms` ago.
    * `for_ms`: time for which this broker has served.
    * `roots`: number of partitions being read. Each manifest is polled; the oldest poll was `roots_age_ms` ago.
    """

    cluster_id: str
    version: int
    for_ms: int
    age_ms: int
    roots: int
    roots_age_ms: int

    def __str__(self) -> str:
        def shown(ms: int) -> str:
            return show_duration(ms // 1000 * 1000)

        roots = f", manifests of {self.roots} partitions at most {shown(self.roots_age_ms)} ago" if self.roots else ""
        return (
            f"read-only for {shown(self.for_ms)}, of the bucket of cluster {self.cluster_id}: cluster.json (version "
            f"{self.version}) was read {shown(self.age_ms)} ago{roots}; positions of groups are in memory only"
        )


class ShownCondition(msgspec.Struct, frozen=True):
    """A condition that holds, and its sentence."""

    name: str
    says: str


class Blocked(msgspec.Struct, frozen=True):
    """Partitions whose tiering is blocked by one cause: their number, the name of one partition, and its last error."""

    by: str
    partitions: int
    partition: str
    why: str

    def __str__(self) -> str:
        several = "partition" if self.partitions == 1 else "partitions, one is"
        name = f", {self.partition}" if self.partitions == 1 else f" {self.partition}"
        return f"blocked by {self.by}: {self.partitions} {several}{name}: {self.why or 'no cause known'}"


class InCluster(msgspec.Struct, frozen=True):
    """A member of a cluster.

    * `version`: applied records of `cluster.json`.
    * `controller_for_ms`: time for which the broker has known the controller; `heartbeat_age_ms`: time since the last
      answered heartbeat was sent, 0 on the controller.
    * `late`: late replicas of the partitions that the broker leads.
    * `strays`: directories on its disk that the cluster does not assign to it.
    * `throttled`: brokers and topics with a replication throttle. `throttled_idle_ms`: time for which a throttle has
      been set while no partition moved.
    """

    version: int
    controller: int | None
    controller_epoch: int | None
    controller_for_ms: int
    heartbeat_age_ms: int
    late: list[LateReplica] = []
    strays: list[str] = []
    throttled: str = ""
    throttled_idle_ms: int = 0
