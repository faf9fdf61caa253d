"""Apache Kafka with its StandardAuthorizer, in which a client without a name is no super user.

Owns the settings. Always true: the PLAINTEXT listener's clients are User:ANONYMOUS and have no rights; brokers,
controllers and whoever sets ACLs log in as User:admin, a super user, on listeners of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka.kafka_peer import kafka_with
from tests.support.processes.ports import free_port_run

_JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="admin" '
    'user_admin="admin";'
)
ADMIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "admin",
    "sasl.password": "admin",
}
"""How librdkafka logs in as the super user."""


class GuardedKafka(NamedTuple):
    """Addresses of the listener without names, and of that of the super user."""

    anonymous: str
    admin: str


@contextlib.contextmanager
def guarded_kafka(run: Path) -> Iterator[GuardedKafka]:
    """A fresh broker; its files in `run`."""
    port = free_port_run(3)
    here = "127.0.0.1"
    settings = f"""
listeners=PLAINTEXT://{here}:{port},CONTROLLER://{here}:{port + 1},ADMIN://{here}:{port + 2}
advertised.listeners=PLAINTEXT://{here}:{port},ADMIN://{here}:{port + 2}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,ADMIN:SASL_PLAINTEXT
inter.broker.listener.name=ADMIN
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.controller.plain.sasl.jaas.config={_JAAS}
listener.name.admin.plain.sasl.jaas.config={_JAAS}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin
remote.log.storage.system.enable=false
offsets.topic.num.partitions=2
transaction.state.log.num.partitions=2
auto.create.topics.enable=false
"""
    with kafka_with(run, port, settings):
        yield GuardedKafka(f"{here}:{port}", f"{here}:{port + 2}")
