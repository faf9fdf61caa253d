"""Kafka's configs that Kafka accepts at run time and that have no effect here.

These configs are accepted, stored and shown, so that tools which set them work.
tests/integration/kafka/test_run_time_configs.py compares with Kafka.

The following configs are refused at run time:

- configs that promise protection (`config.providers`, `cordoned.log.dirs`, `max.connections.per.ip.overrides`);
- the mechanisms of logins;
- passwords, because `cluster.json` would show them.

A key store is set for one listener of one broker. Its file is in the directory of the listener's first key store
(`broker.config.network.key_stores`). Configs that decide a peer's identity (`ssl.client.auth`, trust stores, names of
brokers) cannot change. Otherwise a user who may alter configs could produce a CA into a log, name the log's file as the
trust store, and act as a broker. A trust store's file is read again when it changes, so the path of a new CA can stay
the same."""

from __future__ import annotations

from typing import Final


def _names(text: str) -> list[str]:
    return text.split()


OF_ANY: Final = frozenset(
    _names("""
background.threads follower.fetch.last.tiered.offset.enable group.consumer.assignment.interval.ms
group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms group.streams.assignment.interval.ms
log.preallocate log.roll.jitter.ms log.segment.delete.delay.ms metric.reporters num.io.threads num.network.threads
num.recovery.threads.per.data.dir num.replica.fetchers remote.log.index.file.cache.total.size.bytes
remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
share.coordinator.cached.buffer.max.bytes transaction.partition.verification.enable
""")
)
"""Configs of one broker, or of all."""

OF_ONE: Final = frozenset(
    _names("""
principal.builder.class sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
ssl.cipher.suites ssl.enabled.protocols ssl.engine.factory.class
ssl.keymanager.algorithm ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
""")
)
"""Configs of one broker, named by its id; Kafka refuses them for all brokers."""

OF_A_LISTENER: Final = frozenset(
    _names("""
ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
""")
)
"""Kafka accepts these at run time only with the prefix of a listener."""

OF_A_LISTENER_FIXED: Final = frozenset(
    _names("""
ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.password ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type
""")
)
"""Configs of a listener that are refused at run time: secrets, because `cluster.json` would show them; inline
certificates, which are too long for `cluster.json`; and trust stores.
"""
