"""Kafka's configs without effect here, each with the reason, and values that are refused.

A config is accepted without effect only if clients and operators do not rely on its effect. A config that promises
protection is refused by name (ADR 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config.values import InvalidConfig

_UNCOMPRESSED = "batches of internal topics stay uncompressed, as by Kafka's default."
_REPLICATION = "replicas fetch in a fixed way."
_LEADERS_RATE = (
    "replication is limited at the follower, by follower.replication.throttled.rate; Kafka's tools set both configs."
)

TOPIC_REASONS: Mapping[str, str] = {
    "file.delete.delay.ms": "readers keep an expired file open until they are done, so it is deleted at once.",
    "leader.replication.throttled.replicas": _LEADERS_RATE,
    "preallocate": "files grow as they are written; readers see the same bytes.",
    "segment.jitter.ms": "segments roll after segment.ms at the latest, without jitter: copies queue for their turn.",
}
"""Topic configs accepted without effect, and the reason."""

_PROVIDERS = "OpenSSL takes the place of Java's security providers."
_SASL = "it concerns Kerberos, a Java class, or the way in which a client gets a token; none of these is run here."
_QUORUM = "there is no controller quorum: brokers agree through the bucket."
_GROUPS = "that kind of group is not served yet."
_TRANSACTIONS = "transactions are always verified, and two-phase commit is not served."
_PLUG_IN = "tiering is built in: there is no storage plug-in to configure."
_METRICS = "metrics are served at /metrics, not through reporters."
_ONE_DIRECTORY = "there is one log directory: no replica moves between two of them."
_THREADS = "one loop and a bounded pool of workers take the place of these threads and queues."

BROKER_REASONS: tuple[tuple[str, str], ...] = (
    ("sasl.", _SASL),
    ("ssl.", _PROVIDERS),
    ("security.", _PROVIDERS),
    ("principal.", "principals come from certificates and logins; no Java class is run here."),
    ("delegation.token.", "delegation tokens are not served yet."),
    ("controller.quorum.", _QUORUM),
    ("controller.", _QUORUM),
    ("metadata.", _QUORUM),
    ("internal.metadata.", _QUORUM),
    ("process.roles", _QUORUM),
    ("early.start.listeners", _QUORUM),
    ("initial.broker.registration.", _QUORUM),
    ("server.max.startup.", _QUORUM),
    ("unstable.", _QUORUM),
    ("replica.alter.log.dirs.", _ONE_DIRECTORY),
    ("replica.", _REPLICATION),
    ("num.replica.", _REPLICATION),
    ("follower.", _REPLICATION),
    ("alter.log.dirs.", _ONE_DIRECTORY),
    ("leader.replication.", _LEADERS_RATE),
    ("unclean.leader.election.interval.", _REPLICATION),
    ("controlled.shutdown.", _REPLICATION),
    ("group.consumer.", _GROUPS),
    ("group.share.", _GROUPS),
    ("group.streams.", _GROUPS),
    ("group.coordinator.", _THREADS),
    ("share.", _GROUPS),
    ("transaction", _TRANSACTIONS),
    ("remote.log.metadata.", _PLUG_IN),
    ("remote.log.storage.", _PLUG_IN),
    ("rsm.config.", _PLUG_IN),
    ("rlmm.config.", _PLUG_IN),
    ("remote.log.index.", "indexes of cold segments are part of the chunk cache (thermocline.cache.bytes)."),
    (
        "remote.log.manager.copy.",
        "copies are limited by the number of partitions copied at the same time, not by bandwidth.",
    ),
    ("remote.log.manager.fetch.", "cold reads are bounded by number and memory, not by bandwidth."),
    ("remote.log.manager.", _THREADS),
    ("offsets.topic.compression.codec", _UNCOMPRESSED),
    ("metric", _METRICS),
    ("kafka.metrics.", _METRICS),
    ("telemetry.", _METRICS),
    ("num.", _THREADS),
    ("background.threads", _THREADS),
    ("queued.max.requests", _THREADS),
    ("fetch.purgatory.", _THREADS),
    ("producer.purgatory.", _THREADS),
    ("delete.records.purgatory.", _THREADS),
    ("request.timeout.ms", _THREADS),
    ("socket.", _THREADS),
    ("offsets.load.", _THREADS),
    ("producer.id.expiration.check.", _THREADS),
    ("log.preallocate", "files grow as they are written; readers see the same bytes."),
    ("log.roll.jitter.", "segments roll after segment.ms at the latest, without jitter."),
    ("log.segment.delete.delay.ms", "readers keep an expired file open themselves until they are done."),
    ("log.initial.task.delay.ms", _THREADS),
    ("log.dir.failure.", "there is one log directory; a log whose disk fails goes offline by itself."),
    ("cordoned.log.dirs", "there is one log directory."),
    ("max.request.partition.size.limit", "DescribeTopicPartitions answers 2 000 partitions a page."),
    ("config.providers.", "values are taken as they are written; config.providers itself is refused."),
    (
        "listener.name.",
        "one listener can have its own configs of SASL and TLS, its own max.connections and its own "
        "max.connection.creation.rate, and no others.",
    ),
)
"""Reasons for accepting broker configs without effect, by the beginning of the name; the first match counts."""

IGNORED_BEGINNINGS: Final = ("rsm.config.", "rlmm.config.", "listener.name.", "config.providers.", "metrics.jmx.")
"""Prefixes of names that Kafka passes to plug-ins or to one listener; none has an effect here."""

_NOTHING_ENFORCED = "it is a Java class, which is not run here, so nothing would be enforced; leave it out"
REFUSED: Mapping[str, str] = {
    "create.topic.policy.class.name": _NOTHING_ENFORCED,
    "alter.config.policy.class.name": _NOTHING_ENFORCED,
    "client.quota.callback.class": _NOTHING_ENFORCED,
    "config.providers": "values are taken as they are written, so ${...} would not be replaced; write the values, or "
    "give them in THERMOCLINE_ variables of the environment",
}
"""Broker configs that promise a protection that is missing here, mostly access control. A start with one of them is
refused.
"""

TAKEN_OUT: Mapping[str, str] = {
    "leader.imbalance.per.broker.percentage": "leave it out: Kafka 4 removed it, and "
    "auto.leader.rebalance.enable moves back every leadership that can be moved",
    "control.plane.listener.name": "leave it out: Kafka 4 removed it, and requests of brokers arrive at "
    "inter.broker.listener.name",
}
"""Names that Kafka removed and only warns about, each with the alternative."""

_ROLE: Final = "process.roles"


def reason_of(name: str) -> str:
    """The reason why a broker config has no effect; empty for a refused config."""
    return next((reason for beginning, reason in BROKER_REASONS if name.startswith(beginning)), "")


def check_refused(configured: Mapping[str, str]) -> None:
    """Raise InvalidConfig for a value that promises missing protection."""
    for name, why in REFUSED.items():
        if text := configured.get(name, "").strip():
            raise InvalidConfig(f"Invalid value {text} for configuration {name}: {why}")
    roles = configured.get(_ROLE, "broker")
    if "broker" not in (role.strip() for role in roles.split(",")):
        raise InvalidConfig(
            f"Invalid value {roles} for configuration {_ROLE}: this process is a broker, and needs no controller"
        )


def check_local_retention(unit: str, local: int, retention: int) -> None:
    """Check that local retention is within total retention. `unit` is `ms` or `bytes`; -2 follows the total, -1 is
    unlimited."""
    if retention < 0 or local == -2:
        return
    if local == -1 or local > retention:
        rule = "must not be -1 as" if local == -1 else "must not be more than"
        raise InvalidConfig(
            f"Invalid value {local} for configuration local.retention.{unit}: Value {rule} "
            f"retention.{unit} value is set as {retention}"
        )
