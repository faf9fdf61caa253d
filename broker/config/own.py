"""Broker configs of Thermocline, all named `thermocline.…`. Thermocline has no topic configs of its own.

A limit is a config only if operators have a reason to change it; every other limit is a constant beside its code.
"""

from __future__ import annotations

from broker.config.values import ConfigType, Definition, ValidValues


def _own(
    name: str, kind: ConfigType, default: str | None, valid: str, doc: str, *, dynamic: bool = False
) -> Definition:
    return Definition(
        f"thermocline.{name}", kind, default, ValidValues.read(valid), doc, honoured=True, dynamic=dynamic
    )


_BOOLEAN, _LONG, _INT, _STRING = ConfigType.BOOLEAN, ConfigType.LONG, ConfigType.INT, ConfigType.STRING

OWN: tuple[Definition, ...] = (
    # where things are
    _own("bucket", _STRING, None, "", "URL of the bucket (--bucket); default: the directory <data-dir>-bucket."),
    _own("http", _STRING, "127.0.0.1:9644", "", "host:port of /metrics, /readyz, tier seal; empty: none (--no-http)."),
    _own(
        "http.ssl.keystore.location",
        _STRING,
        None,
        "",
        "PEM file with private key and certificate chain, or PKCS12: the HTTP port then speaks TLS. Read again when it "
        "changes.",
    ),
    _own(
        "http.ssl.keystore.password",
        ConfigType.PASSWORD,
        None,
        "",
        "Password of thermocline.http.ssl.keystore.location, if it is PKCS12.",
    ),
    _own(
        "http.ssl.key.password",
        ConfigType.PASSWORD,
        None,
        "",
        "Password of the private key of the HTTP port, if it is encrypted PEM.",
    ),
    _own(
        "http.token.file",
        _STRING,
        None,
        "",
        "File with one secret a line: a bearer token, or user:password. Every request but those of /healthz and "
        "/readyz then needs one of them. Read again when it changes. Without it requests that change something are "
        "answered from loopback only.",
    ),
    _own("http.metrics.open", _BOOLEAN, "false", "", "/metrics is answered without a secret of http.token.file."),
    _own(
        "internal",
        _STRING,
        "127.0.0.1:0",
        "filled",
        "host:port of the listener that only brokers use; it is not advertised to clients; port 0 picks one "
        "(--internal). Not bound when inter.broker.listener.name names one of several listeners.",
    ),
    _own(
        "encryption.key.file",
        _STRING,
        None,
        "",
        "Absolute path of the key file: objects of the bucket are encrypted and decrypted with its keys "
        "(docs/encryption.md). A key_file in the bucket's URL takes precedence.",
    ),
    # durability of an acknowledgement
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
        "Read the records of every batch and refuse malformed ones. false: batches are stored as sent, unread.",
    ),
    # when and how the log is copied to the bucket
    _own(
        "seal.ms",
        _LONG,
        "3600000",
        "1..",
        "A record of a tiered topic waits at most this long until its segment is sealed.",
        dynamic=True,
    ),
    _own(
        "seal.on.shutdown",
        _BOOLEAN,
        "false",
        "",
        "A clean stop first seals and copies everything, as tier seal --wait does.",
    ),
    _own(
        "local.bytes.max",
        _STRING,
        "80%",
        "filled",
        "Above this many bytes of local log, or this share of the file system, segments that the bucket holds are "
        "deleted from the disk before their local retention ends.",
    ),
    _own(
        "brokers.on.disk",
        _INT,
        "1",
        "1..",
        "Number of brokers that share the file system of the data directory, including this one (--brokers sets "
        "it). If local logs exceed their share of the file system, each of these brokers frees its part.",
    ),
    _own(
        "reservation.offsets",
        _LONG,
        "1048576",
        "1..",
        "Offsets reserved in the bucket at a time for each partition: after a lost disk the log continues above them, "
        "so that none is assigned twice. Larger: fewer requests, larger gaps.",
    ),
    _own(
        "follower.skip.bytes",
        _LONG,
        "67108864",
        "0..",
        "If a replica outside the in-sync set lacks more than this many bytes that are verified in the bucket, it "
        "starts at the end of these bytes and does not copy them from its leader. An empty replica always does so. "
        "The leader's value applies.",
        dynamic=True,
    ),
    _own(
        "gc.grace.ms",
        _LONG,
        "60000",
        "0..",
        "Time between moving a log's start and deleting the objects below it, so that present readers finish.",
    ),
    _own(
        "cold.compaction.bytes.per.hour",
        _LONG,
        "10737418240",
        "0..",
        "Budget of the bucket's compaction: bytes that this broker reads from the bucket and writes to it in an hour. "
        "0: the bucket's part of compacted topics is not rewritten.",
    ),
    _own(
        "cold.compaction.grace.ms",
        _LONG,
        "86400000",
        "0..",
        "Objects that compaction replaced stay in the bucket this long, so that present readers, such as Spark jobs, "
        "finish.",
    ),
    _own(
        "offsets.snapshot.interval.ms",
        _LONG,
        "7500",
        "1..",
        "Time between two snapshots of the group offsets. The broker checks four times in this time whether one "
        "is due.",
    ),
    # reading the cold tier
    _own("cache.bytes", _LONG, "1073741824", "0..", "Disk space for chunks of cold segments read from the bucket."),
    _own("prefetch.bytes", _LONG, "16777216", "0..", "Bytes prefetched for a sequential cold reader."),
    _own("cold.fetch.bytes.max", _LONG, "67108864", "1048576..", "Memory for cold chunks being sent, for all clients."),
    # the bucket as coordinator
    _own(
        "lease.interval.ms",
        _LONG,
        "-1",
        "-1,10..86400000",
        "Time between two renewals of the controller's lease, and between two polls of it by another broker. -1: 3 "
        "s, or 1 s when the bucket is a directory.",
    ),
    _own(
        "lease.ms",
        _LONG,
        "-1",
        "-1,30..86400000",
        "A controller's lease that was not renewed for this long may be taken over. -1: 10 s, or 5 s when the bucket "
        "is a directory.",
    ),
    _own(
        "store.timeout.ms",
        _LONG,
        "10000",
        "1..",
        "Deadline of a request to the store, except storing a segment object.",
    ),
    _own("store.upload.timeout.ms", _LONG, "300000", "1..", "Deadline of storing one segment object."),
    # stopping, and tests
    _own("shutdown.timeout.ms", _LONG, "10000", "0..", "A clean stop waits this long for requests in flight."),
    _own("frame.timeout.ms", _LONG, "30000", "1..", "A request frame that began must be complete within this time."),
    _own("testing", _BOOLEAN, "false", "", "Allows THERMOCLINE_CRASH_AT. Only for tests: never set it in production."),
)
