"""The configs Kafka does not have: all begin with `thermocline.`.

Owns their names, defaults, limits and docs. A small set on purpose: a number is a config only when somebody running a
broker has a reason to change it; every other bound is a constant beside the code it bounds.
"""

from __future__ import annotations

from broker.config.values import ConfigType, Definition, Limits


def _own(
    name: str, kind: ConfigType, default: str | None, limits: str, doc: str, *, dynamic: bool = False
) -> Definition:
    return Definition(f"thermocline.{name}", kind, default, Limits.read(limits), doc, honoured=True, dynamic=dynamic)


_BOOLEAN, _LONG, _INT, _STRING = ConfigType.BOOLEAN, ConfigType.LONG, ConfigType.INT, ConfigType.STRING

OWN: tuple[Definition, ...] = (
    # where things are
    _own("bucket", _STRING, None, "", "URL of the bucket (--bucket); default: the directory <data-dir>-bucket."),
    _own("http", _STRING, "127.0.0.1:9644", "", "host:port of /metrics, /readyz, tier seal; empty: none (--no-http)."),
    _own(
        "internal",
        _STRING,
        "127.0.0.1:0",
        "filled",
        "host:port of the listener that only brokers use, and no client is told of; port 0 picks one (--internal). Not "
        "bound where inter.broker.listener.name names one of several listeners.",
    ),
    # what an acknowledgement means
    _own(
        "flush",
        _STRING,
        "sync",
        "sync/os",
        "sync: acks=all answers, and records become visible, after an fdatasync; os: after the write to the page "
        "cache, as in Kafka.",
    ),
    _own(
        "validate.records",
        _BOOLEAN,
        "false",
        "",
        "Look inside every batch and refuse malformed records. false: they are kept as sent, unread.",
    ),
    # how the log sinks
    _own(
        "seal.ms",
        _LONG,
        "3600000",
        "1..",
        "A tiered topic's record waits at most this long for the seal.",
        dynamic=True,
    ),
    _own(
        "seal.on.shutdown",
        _BOOLEAN,
        "false",
        "",
        "A clean stop first does what tier seal --wait does.",
    ),
    _own(
        "local.bytes.max",
        _STRING,
        "80%",
        "filled",
        "Above this many bytes of local log, or this share of the file system, what is in the bucket leaves the disk "
        "before local retention asks.",
    ),
    _own(
        "brokers.on.disk",
        _INT,
        "1",
        "1..",
        "Brokers that share the file system of the data directory, this one among them (--brokers sets it): each gives "
        "back its part of what is over a share of the file system.",
    ),
    _own(
        "reservation.offsets",
        _LONG,
        "1048576",
        "1..",
        "Offsets reserved in the bucket at a time for each partition: after a lost disk the log goes on above them, so "
        "none is given twice. Larger: fewer requests, larger holes.",
    ),
    _own(
        "follower.skip.bytes",
        _LONG,
        "67108864",
        "0..",
        "A replica outside the in-sync set that lacks more than this of what the bucket holds, verified, begins where "
        "that ends instead of copying it from its leader; an empty one always does. Read on the leader.",
        dynamic=True,
    ),
    _own(
        "gc.grace.ms",
        _LONG,
        "60000",
        "0..",
        "Time between moving a log's start and deleting the objects below it: readers that are under way finish.",
    ),
    _own(
        "offsets.snapshot.interval.ms",
        _LONG,
        "10000",
        "1..",
        "Time between two snapshots of the group offsets.",
    ),
    # reading the cold tier
    _own("cache.bytes", _LONG, "1073741824", "0..", "Disk space for chunks of cold segments read from the bucket."),
    _own("prefetch.bytes", _LONG, "16777216", "0..", "How far a sequential cold reader is read ahead."),
    _own("cold.fetch.bytes.max", _LONG, "67108864", "1048576..", "Memory for cold chunks on their way to all clients."),
    # the bucket as coordinator
    _own(
        "lease.interval.ms",
        _LONG,
        "-1",
        "-1,10..86400000",
        "Time between two bumps of the controller's lease, or two polls. -1: 3 s, or 1 s where the "
        "bucket is a directory.",
    ),
    _own(
        "lease.ms",
        _LONG,
        "-1",
        "-1,30..86400000",
        "A controller's lease that stood still this long may be taken over. -1: 10 s, or 5 s where the bucket is a "
        "directory.",
    ),
    _own("store.timeout.ms", _LONG, "10000", "1..", "Deadline of a small request to the store, or a MiB."),
    _own("store.upload.timeout.ms", _LONG, "300000", "1..", "Deadline of storing one segment object."),
    # stopping, and tests
    _own("shutdown.timeout.ms", _LONG, "10000", "0..", "How long a clean stop lets requests under way finish."),
    _own("frame.timeout.ms", _LONG, "30000", "1..", "A request frame that began must be complete within this time."),
    _own("testing", _BOOLEAN, "false", "", "Allows THERMOCLINE_CRASH_AT. Never in service."),
)
