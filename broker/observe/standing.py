"""What a broker says of itself in its cluster: the `cluster` of `GET /broker`.

Owns these fields (`cluster status` reads them). Must not know where they come from.
"""

from __future__ import annotations

import msgspec

from broker.config.units import show_duration


class LateReplica(msgspec.Struct, frozen=True, gc=False):
    """A replica that lacks something its leader held half a second ago. `records` and, about, `bytes` it has not
    flushed (null: it has said nothing in this leader epoch); `ms`: for how long."""

    topic: str
    partition: int
    node: int
    records: int | None
    bytes: int | None
    ms: int


class ReadOnly(msgspec.Struct, frozen=True):
    """Of a broker that reads the bucket of another cluster (`serve --read-only`). `cluster_id`: of that cluster;
    `version`: how many records of its `cluster.json` are obeyed, looked at `age_ms` ago; `for_ms`: since when it
    serves; `roots`: of partitions that somebody reads, each looked at again and again, the last of them
    `roots_age_ms` ago."""

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


class InCluster(msgspec.Struct, frozen=True):
    """`version`: how many records of `cluster.json` it obeys; `controller_for_ms`: how long it has known the
    controller; `heartbeat_age_ms`: since the last heartbeat was sent that was answered, 0 for the controller;
    `late`: replicas of what it leads that are behind; `strays`: directories of its disk that the cluster does not
    assign to it; `throttled`: what of replication is throttled, and `throttled_idle_ms`: for how long it has been so
    while nothing moved."""

    version: int
    controller: int | None
    controller_epoch: int | None
    controller_for_ms: int
    heartbeat_age_ms: int
    late: list[LateReplica] = []
    strays: list[str] = []
    throttled: str = ""
    throttled_idle_ms: int = 0
