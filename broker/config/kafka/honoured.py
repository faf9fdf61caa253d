"""Kafka's configs that have an effect here: their documentation, and each default that differs from Kafka's, with the
reason.

Types, limits and Kafka's defaults are in the generated table.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Honoured(msgspec.Struct, frozen=True):
    """The effect of a config here. `default` (as text) replaces Kafka's default because of `reason`. `dynamic`: see
    `Definition`."""

    doc: str
    default: str | None = None
    reason: str = ""
    dynamic: bool = False


H = Honoured


def _dynamic(doc: str, default: str | None = None, reason: str = "") -> Honoured:
    """Mark a broker config that may change at run time. In Kafka the same configs may change at run time, and Kafka's
    tools rely on this."""
    return Honoured(doc, default, reason, dynamic=True)


D = _dynamic

_LIMITS_ON = "Kafka sets no limit; here limits are on from the start, because one client must not starve the rest."
_SINKING = "A tiered log has to leave the disk: "

_SEGMENT_BYTES = D(
    "A segment is sealed, and then copied to the bucket, when it would grow beyond this many bytes.",
    "134217728",
    _SINKING + "Kafka's 1 GiB would keep a quiet topic's history on the disk for days; 128 MiB costs 8 requests a GiB.",
)

RACK_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

BROKER_NAMES: Mapping[str, Honoured] = {
    # identity and addresses
    "node.id": H(
        "This broker's number in its cluster.", "1", "Kafka has no default; a single broker starts without this config."
    ),
    "broker.id": H("Older name of node.id."),
    "broker.rack": H(
        "This broker's rack, as clients see it in Metadata; replicas are spread over racks, and "
        "replica.selector.class uses it (--rack)."
    ),
    "replica.selector.class": H(
        f"{RACK_SELECTOR}: leaders send a consumer that names its rack (client.rack) to an in-sync replica in that "
        "rack. No other class is served. Not set: all consumers read from leaders."
    ),
    "log.dirs": H("The data directory; exactly one (--data-dir)."),
    "log.dir": H(
        "Older name of log.dirs.", "", "Kafka's default is below /tmp, where the log would be lost; set a directory."
    ),
    "listeners": H(
        "Addresses to listen on, each with a name and a port of its own: NAME://host:port, or host:port for PLAINTEXT; "
        "port 0 picks one (--listen).",
        "PLAINTEXT://127.0.0.1:9092",
        "Kafka listens on every interface; here only loopback is served until authentication is configured.",
    ),
    "advertised.listeners": H(
        "The address that each listener tells its clients, by the listener's name; default: the address on which it "
        "listens (--advertise)."
    ),
    "listener.security.protocol.map": H("Protocol of each listener name, as NAME:PROTOCOL,…"),
    "inter.broker.listener.name": H(
        "The name of the listener that other brokers use, if it is one of listeners. The other listeners refuse "
        "requests of brokers. Default: an additional listener, thermocline.internal."
    ),
    "security.inter.broker.protocol": H(
        "Protocol of the additional listener that only brokers use (thermocline.internal): with SSL each broker "
        "presents its certificate and verifies the certificates and names of the others."
    ),
    # TLS; each also as listener.name.NAME.CONFIG
    "ssl.keystore.location": H(
        "This broker's private key with its certificate chain: one PEM file, or PKCS12. Read again when it changes: "
        "new connections get the new certificate. It may change at run time for one listener of one broker.",
    ),
    "ssl.keystore.type": H(
        "PEM or PKCS12; if it is not set, the broker detects the format of a file. JKS is not read: convert it with "
        "keytool."
    ),
    "ssl.keystore.password": H("Password of a PKCS12 key store."),
    "ssl.keystore.key": H("Private key inline, in PEM; with ssl.keystore.certificate.chain."),
    "ssl.keystore.certificate.chain": H("Certificate chain inline, in PEM; with ssl.keystore.key."),
    "ssl.key.password": H("Password of an encrypted private key in PEM."),
    "ssl.truststore.location": H(
        "Certificates of the CAs that sign clients' and brokers' certificates: PEM or PKCS12. Read again when it "
        "changes. Not set: no client certificate is accepted, and other brokers are verified by the system's CAs."
    ),
    "ssl.truststore.type": H("PEM or PKCS12; if it is not set, the broker detects the format of a file."),
    "ssl.truststore.password": H("Password of a PKCS12 trust store."),
    "ssl.truststore.certificates": H("Certificates of the CAs inline, in PEM."),
    "ssl.client.auth": H(
        "required: a client must present a certificate of a trusted CA; requested: it may present one; none: the "
        "broker asks for none."
    ),
    "ssl.enabled.protocols": D("TLSv1.2 and TLSv1.3; older versions are refused."),
    "ssl.protocol": D("With TLSv1.2, TLS 1.3 is not served."),
    "ssl.cipher.suites": D(
        "Cipher suites with forward secrecy, by IANA's or OpenSSL's names. For TLS 1.3, list the first, the first "
        "two or all three of TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256, TLS_AES_128_GCM_SHA256. Without a "
        "list, TLS 1.2 uses the suites with GCM or ChaCha20. A suite with CBC is used only if it is listed."
    ),
    "ssl.endpoint.identification.algorithm": H(
        "https: the certificate of another broker must name the host that this broker connects to; empty: any name "
        "is accepted."
    ),
    "ssl.principal.mapping.rules": H(
        "Rules that map the subject of a client's certificate to a principal: RULE:pattern/replacement/[LU] or "
        "DEFAULT. The first rule that matches applies. A subject that matches no rule is refused."
    ),
    "ssl.allow.dn.changes": H("A new key store may have another subject."),
    "ssl.allow.san.changes": H("A new key store may lack names of the old one."),
    "controller.listener.names": H("Listeners with these names are not opened: there is no controller quorum."),
    # the authorizer
    "authorizer.class.name": H(
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer: requests are allowed by ACLs, and a request that no "
        "ACL allows is denied. No other class is served. Not set: every client may do everything."
    ),
    # the cluster
    "broker.session.timeout.ms": H(
        "The controller ends the session of a broker that was silent for this long; then other brokers lead its "
        "partitions. After the broker's connection closed, the session ends in two seconds or a quarter of this "
        "time, whichever is less, but not before 4/3 of broker.heartbeat.interval.ms."
    ),
    "broker.heartbeat.interval.ms": H(
        "If the controller has no news for a broker, it answers the broker's heartbeat after this time. The broker "
        "then sends the next heartbeat. At most a quarter of broker.session.timeout.ms.",
        "1500",
        "Kafka's brokers send one every 2 s; here the answer to a heartbeat carries the news.",
    ),
    # topics
    "num.partitions": H("Partitions of a topic created without a count."),
    "default.replication.factor": H("Replication factor of a topic created without one."),
    "auto.create.topics.enable": H("A Metadata request that allows it creates missing topics."),
    "delete.topic.enable": H("DeleteTopics is allowed."),
    "auto.leader.rebalance.enable": H(
        "The first assigned replica leads again once it is in sync: the controller checks it every "
        "leader.imbalance.check.interval.seconds. The controller's value applies."
    ),
    "leader.imbalance.check.interval.seconds": H(
        "Time between two checks of the controller; see auto.leader.rebalance.enable."
    ),
    "replication.quota.window.num": H("Number of windows over which follower.replication.throttled.rate is measured."),
    "replication.quota.window.size.seconds": H("Length of each window that replication.quota.window.num counts."),
    # client quotas
    "quota.window.num": H("Number of windows over which the quotas of clients are measured."),
    "quota.window.size.seconds": H(
        "Length of each window that quota.window.num counts, and the longest throttle time for request_percentage."
    ),
    "controller.quota.window.num": H(
        "With a quota on controller mutations (controller_mutation_rate), a client may use the quota of this many "
        "windows at once."
    ),
    "controller.quota.window.size.seconds": H("Length of each window that controller.quota.window.num counts."),
    # network limits
    "socket.request.max.bytes": H(
        "Largest request frame. A connection that sends a larger one is closed before memory is allocated for it."
    ),
    "queued.max.request.bytes": H(
        "Bytes of request frames held in memory over all connections; when they are used up, reading pauses. -1: "
        "no limit.",
        "268435456",
        _LIMITS_ON,
    ),
    "socket.send.buffer.bytes": H(
        "The kernel's send buffer of a connection; -1: the kernel's default size (with BBR, local fetches then take "
        "twice as long). If this config is not set, up to 630 connections with large fetch responses get 208 KiB."
    ),
    "socket.receive.buffer.bytes": H(
        "The kernel's receive buffer of a connection; -1: the kernel's default size.",
        "-1",
        "with 102400 a request of 1 MB takes eleven reads instead of a few, and throughput is a fifth lower",
    ),
    "connections.max.idle.ms": H("A connection without a request for this long is closed."),
    "max.connections": D(
        "Limit of open connections; more connections wait to be accepted. Limit of one listener: "
        "listener.name.NAME.max.connections.",
        "10000",
        _LIMITS_ON,
    ),
    "max.connections.per.ip": D("Limit of open connections from one address.", "2000", _LIMITS_ON),
    "max.connections.per.ip.overrides": H(
        "Limits of open connections from single addresses, in place of max.connections.per.ip: address:count,… "
        "(Kafka takes host names too)."
    ),
    "max.connection.creation.rate": D(
        "Limit of the connections accepted a second; more connections wait and are not closed. Limit of one "
        "listener: listener.name.NAME.max.connection.creation.rate.",
        "1000",
        _LIMITS_ON,
    ),
    "fetch.max.bytes": H("Limit of the record bytes in one Fetch answer, even if the client asks for more."),
    "max.incremental.fetch.session.cache.slots": H(
        "Limit of fetch sessions; clients without a session send full fetches. All sessions share 128 MiB, "
        "regardless of their number."
    ),
    # the local log
    "log.retention.check.interval.ms": H("Time between two checks of local and total retention."),
    "log.flush.offset.checkpoint.interval.ms": H("Time between two writes of the recovery points."),
    "log.flush.start.offset.checkpoint.interval.ms": H("Time between two writes of the log start offsets."),
    "replica.high.watermark.checkpoint.interval.ms": H("Time between two writes of the high watermarks."),
    "replica.lag.time.max.ms": H(
        "A replica leaves the in-sync set when it lacks records that its leader had this long ago; the leader may "
        "notice this up to a quarter of this time later."
    ),
    "producer.id.expiration.ms": D("The broker forgets an idempotent producer that wrote nothing for this long."),
    # the log cleaner
    "log.cleaner.enable": H("Compacted topics are cleaned. false: they are not cleaned, and grow."),
    "log.cleaner.threads": D(
        "Logs cleaned at the same time; at least one, and more than 4 count as 4. A change at run time at most halves "
        "or doubles it."
    ),
    "log.cleaner.dedupe.buffer.size": D(
        "Memory for the keys of all logs that are cleaned at the same time, in bytes; at least 1 MiB for each. A log "
        "with more keys is cleaned in several passes."
    ),
    "log.cleaner.io.buffer.size": D("Memory for the reads and writes of the log cleaner, in bytes."),
    "log.cleaner.io.buffer.load.factor": D(
        "Share of its part of log.cleaner.dedupe.buffer.size that a pass fills with keys; above 0, at most 1."
    ),
    "log.cleaner.io.max.bytes.per.second": D("Bytes that cleaning reads a second in all logs together."),
    "log.cleaner.backoff.ms": D("Time until the next check when no log is to be cleaned."),
    # groups
    "group.initial.rebalance.delay.ms": H("An empty group's first rebalance waits this long for more members."),
    "group.min.session.timeout.ms": H("The shortest session timeout a member may ask for."),
    "group.max.session.timeout.ms": H("The longest session timeout a member may ask for."),
    "group.max.size": H("Limit of members of one group."),
    "offset.metadata.max.bytes": H("Largest metadata, in bytes, that a client may commit with an offset."),
    "offsets.commit.timeout.ms": H(
        "An offset commit that is not durable after this time fails with a retriable error."
    ),
    "offsets.retention.minutes": H("Offsets of a group without members are forgotten after this long."),
    "offsets.retention.check.interval.ms": H("Time between two checks for expired offsets."),
    "offsets.topic.num.partitions": H("Partitions of __consumer_offsets, when it is created."),
    "offsets.topic.replication.factor": H(
        "Replicas of each partition of __consumer_offsets, when it is created; at most one on each broker."
    ),
    "offsets.topic.segment.bytes": H("Segment size of __consumer_offsets."),
    # transactions
    "transaction.max.timeout.ms": H("The longest time-out that a transactional producer may ask for."),
    "transactional.id.expiration.ms": H("A transactional id without a transaction for this long is forgotten."),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": H(
        "Time between two checks for transactions that exceeded their time-out; the check aborts them."
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": H(
        "Time between two checks for expired transactional ids."
    ),
    "add.partitions.to.txn.retry.backoff.ms": H(
        "Longest time between two tries to add a partition while the producer's previous transaction still lacks "
        "markers."
    ),
    "add.partitions.to.txn.retry.backoff.max.ms": H(
        "A produce request waits this long while the broker tries again to add its partition to the transaction."
    ),
    "transaction.state.log.num.partitions": H("Partitions of __transaction_state, when it is created."),
    "transaction.state.log.replication.factor": H(
        "Replicas of each partition of __transaction_state, when it is created; at most one on each broker."
    ),
    "transaction.state.log.min.isr": H(
        "min.insync.replicas of __transaction_state, when it is created; no more than it has replicas."
    ),
    "transaction.state.log.segment.bytes": H("Segment size of __transaction_state."),
    # tiering
    "remote.log.storage.system.enable": H(
        "Topics may be tiered. false: new topics stay local and remote.storage.enable=true is refused.",
        "true",
        "Kafka needs a plug-in first; here there is always a bucket.",
    ),
    "remote.log.manager.task.interval.ms": H(
        "The longest time between two checks for tiering work; copying itself starts when a segment is sealed."
    ),
    "remote.log.manager.task.retry.backoff.ms": H("First wait after a failed copy."),
    "remote.log.manager.task.retry.backoff.max.ms": H("Longest wait after repeated failures of a copy."),
    "remote.log.manager.task.retry.jitter": H(
        "Share by which the wait before the next try of a copy is varied at random."
    ),
    "remote.log.manager.copier.thread.pool.size": H("Partitions copied to the bucket at the same time."),
    "remote.log.reader.threads": H("Cold reads running at the same time."),
    "remote.log.reader.max.pending.tasks": H(
        "Limit of waiting cold reads; a Fetch above it is answered without records, and the client fetches again."
    ),
    "remote.fetch.max.wait.ms": D("A Fetch waits this long for cold data; the load then continues into the cache."),
    "remote.list.offsets.request.timeout.ms": D("A ListOffsets by time waits this long for cold data."),
    # defaults of topics
    "log.segment.bytes": _SEGMENT_BYTES,
    "log.roll.ms": D("Default of segment.ms."),
    "log.roll.hours": H("Default of segment.ms, in hours."),
    "log.retention.ms": D("Default of retention.ms."),
    "log.retention.minutes": H("Default of retention.ms, in minutes."),
    "log.retention.hours": H("Default of retention.ms, in hours."),
    "log.retention.bytes": D("Default of retention.bytes."),
    "log.local.retention.ms": D(
        "Default of local.retention.ms; -2: as long as retention.ms.",
        "86400000",
        _SINKING + "Kafka keeps local copies for all of retention.ms; here one day, or retention.ms when that is less.",
    ),
    "log.local.retention.bytes": D("Default of local.retention.bytes; -2: retention.bytes."),
    "log.index.interval.bytes": D("Default of index.interval.bytes."),
    "log.index.size.max.bytes": D("Default of segment.index.bytes."),
    "log.flush.interval.messages": D("Default of flush.messages."),
    "log.flush.interval.ms": D("Default of flush.ms."),
    "log.flush.scheduler.interval.ms": H("Default of flush.ms if log.flush.interval.ms is not set."),
    "log.cleanup.policy": D("Default of cleanup.policy."),
    "log.cleaner.min.cleanable.ratio": D("Default of min.cleanable.dirty.ratio."),
    "log.cleaner.min.compaction.lag.ms": D("Default of min.compaction.lag.ms."),
    "log.cleaner.max.compaction.lag.ms": D("Default of max.compaction.lag.ms."),
    "log.cleaner.delete.retention.ms": D("Default of delete.retention.ms."),
    "log.message.timestamp.type": D("Default of message.timestamp.type."),
    "log.message.timestamp.before.max.ms": D("Default of message.timestamp.before.max.ms."),
    "log.message.timestamp.after.max.ms": D("Default of message.timestamp.after.max.ms."),
    "message.max.bytes": D("Default of max.message.bytes."),
    "min.insync.replicas": D(
        "Default of the topic config of that name, for the whole cluster: the first controller writes its own value "
        "into cluster.json; other brokers log that their own value has no effect."
    ),
    "unclean.leader.election.enable": D(
        "Default of the topic config of that name, for the whole cluster; the first controller decides, as for "
        "min.insync.replicas."
    ),
    "compression.type": D("Default of the topic config of that name."),
    "compression.gzip.level": D("Default of the topic config of that name."),
    "compression.lz4.level": D("Default of the topic config of that name."),
    "compression.zstd.level": D("Default of the topic config of that name."),
    # SASL, of all listeners or (listener.name.NAME.…) of one
    "sasl.enabled.mechanisms": H(
        "Mechanisms with which clients log in to a SASL listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    ),
    "sasl.jaas.config": H(
        "Users of PLAIN (user_NAME) and, on the brokers' listener, the username and password with which brokers log "
        "in to one another. Set it in a file or the environment, only as "
        "listener.name.NAME.MECHANISM.sasl.jaas.config."
    ),
    "sasl.mechanism.inter.broker.protocol": H("The mechanism with which brokers log in to one another."),
    "sasl.server.max.receive.size": H(
        "The largest request of a client that has not logged in yet; at most 16 KiB, or 40 KiB with OAUTHBEARER, are "
        "read, even if more is configured."
    ),
    "sasl.server.callback.handler.class": H(
        "OAuthBearerUnsecuredValidatorCallbackHandler accepts unsigned tokens, for tests; no other Java class is run."
    ),
    "connections.max.reauth.ms": H("A client logs in again within this time, or is disconnected; 0: never (KIP-368)."),
    "connection.failed.authentication.delay.ms": H(
        "A failed login is answered after this time; then its connection is closed."
    ),
    "sasl.oauthbearer.jwks.endpoint.url": H("URL of the keys that sign OAUTHBEARER tokens: https://… or file:///…"),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": H(
        "Time between two reads of the keys at sasl.oauthbearer.jwks.endpoint.url."
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": H("First wait after the keys of OAUTHBEARER could not be read."),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": H(
        "Longest wait after the keys of OAUTHBEARER could not be read."
    ),
    "sasl.oauthbearer.expected.audience": H("Accepted audiences of a token (aud); empty: any."),
    "sasl.oauthbearer.expected.issuer": H("Accepted issuer of a token (iss); not set: any."),
    "sasl.oauthbearer.scope.claim.name": H("The claim with a token's scope."),
    "sasl.oauthbearer.sub.claim.name": H("The claim with the name of a token's user."),
    "sasl.oauthbearer.clock.skew.seconds": H(
        "Largest difference between the broker's clock and that of a token's issuer."
    ),
}

DYNAMIC_NAMES: Mapping[str, Honoured] = {
    "follower.replication.throttled.rate": D(
        "Limit, in bytes a second, on the copying of throttled replicas to this broker, from all leaders together. A "
        "replica is throttled while it is out of sync and its topic's follower.replication.throttled.replicas names "
        "it. Keep it above 1 MB/s, as in Kafka."
    )
}
"""Configs that Kafka accepts only at run time."""

TOPIC_NAMES: Mapping[str, Honoured] = {
    "cleanup.policy": H(
        "delete: retention deletes old segments. compact: the cleaner keeps the newest record of each key, and every "
        "record needs a key; retention deletes segments only if delete is named too. Empty: nothing is deleted."
    ),
    "compression.type": H(
        "producer: batches stay as the client compressed them. With a codec, the broker recompresses batches in "
        "other codecs before it stores them, which costs CPU time."
    ),
    "compression.gzip.level": H("Level of gzip when the broker recompresses; -1: zlib's default."),
    "compression.lz4.level": H("Level of lz4 when the broker recompresses; 9: its fast compressor, as in Kafka."),
    "compression.zstd.level": H("Level of zstd when the broker recompresses."),
    "delete.retention.ms": H(
        "A tombstone (a key without value) stays this long after the first pass that found no older record of its key."
    ),
    "flush.messages": H("The broker calls fdatasync after this many records, also under thermocline.flush=os."),
    "flush.ms": H("The broker calls fdatasync at the latest this long after a write, also under thermocline.flush=os."),
    "follower.replication.throttled.replicas": H(
        "Replicas that follower.replication.throttled.rate limits while they are out of sync: partition:broker, or *."
    ),
    "index.interval.bytes": H("One entry in the offset index for about this many bytes of log."),
    "internal.segment.bytes": H("segment.bytes without a lower limit, for tests."),
    "local.retention.bytes": H("Copied segments beyond this many bytes leave the disk; -2: retention.bytes."),
    "local.retention.ms": H(
        "Copied segments older than this leave the disk; -2: retention.ms.",
        "86400000",
        _SINKING + "Kafka keeps local copies for all of retention.ms; here one day, or retention.ms when that is less.",
    ),
    "max.message.bytes": H("The largest record batch accepted."),
    "message.timestamp.after.max.ms": H("A record whose timestamp is more than this in the future is refused."),
    "message.timestamp.before.max.ms": H("A record whose timestamp is more than this in the past is refused."),
    "message.timestamp.type": H(
        "CreateTime: the client's timestamp; LogAppendTime: the broker's clock when it appends."
    ),
    "max.compaction.lag.ms": H("A record older than this is cleaned, regardless of min.cleanable.dirty.ratio."),
    "min.cleanable.dirty.ratio": H(
        "A log is cleaned when the share of its bytes that are not yet cleaned exceeds this value."
    ),
    "min.compaction.lag.ms": H("A record younger than this is not cleaned."),
    "min.insync.replicas": H(
        "With acks=all, a write needs this many in-sync replicas, or all replicas if the partition has fewer."
    ),
    "unclean.leader.election.enable": H(
        "When no in-sync replica has a session, another replica leads after a session timeout. The records that it "
        "lacks are lost."
    ),
    "remote.log.copy.disable": H("Copying to the bucket stops; copied segments stay readable."),
    "remote.log.delete.on.disable": H(
        "Must be true to switch remote.storage.enable off, which deletes the topic's objects in the bucket."
    ),
    "remote.storage.enable": H(
        "Sealed segments are copied to the bucket, and leave the disk by local retention.",
        "true",
        _SINKING
        + ("Kafka's default is false; here every topic that is not internal and has cleanup.policy=delete is tiered."),
    ),
    "retention.bytes": H("Both tiers together hold at most about this many bytes of a partition; -1: no limit."),
    "retention.ms": H("Records older than this leave both tiers; -1: never."),
    "segment.bytes": _SEGMENT_BYTES,
    "segment.index.bytes": H("Size of a segment's offset index; when the index is full, the segment is sealed."),
    "segment.ms": H("A segment is sealed at the latest this long after its first record was appended."),
}
