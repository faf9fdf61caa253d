"""Configs of a broker under `--secure`, and the client configurations that fit them. Pure.

Flags, `--set`, environment and file override these configs. Clients use SASL_SSL with SCRAM. Brokers use TLS and
authenticate each other by the cluster's CA. The brokers' listener has separate keys and trust, so that another
certificate or trust store for clients does not affect it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.config.authorizer import STANDARD_AUTHORIZER
from broker.config.network.addresses import show_address
from broker.config.network.sasl import LOGIN_MODULES, jaas_name
from broker.security_protocol import SCRAM_SHA_256, SCRAM_SHA_512
from thermocline.cli.serve.secure.directory import BROKER_NAME, SecuredDirectory

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig

LISTENER: Final = "SASL_SSL"
ADMIN_USER: Final = "admin"
MECHANISM: Final = SCRAM_SHA_512
_BROKERS_USER: Final = "thermocline-broker"
_BROKERS_PORT_ABOVE: Final = 1000
"""Distance of the brokers' port above the clients' port. `--brokers N` takes N consecutive ports for each."""
_PORT_MAX: Final = 65_535


CLIENTS: Final = {
    "listeners": f"{LISTENER}://127.0.0.1:9092",
    "sasl.enabled.mechanisms": f"{MECHANISM},{SCRAM_SHA_256}",
    "connections.max.reauth.ms": "3600000",
}
"""Configs of the clients' listener, which do not depend on the data directory."""


def broker_configs(secured: SecuredDirectory, plain: BrokerConfig, admin_password: str | None) -> dict[str, str]:
    """`plain`: the configuration without these configs; it gives the node id and the listeners. `admin_password`:
    password of the first user if this broker creates the cluster."""
    of_brokers = f"listener.name.{plain.brokers_listener.lower()}"
    found = CLIENTS | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(secured.broker_file(plain.node_id)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.authority_file),
        "thermocline.http.ssl.keystore.location": str(secured.broker_file(plain.node_id)),
        "thermocline.http.token.file": str(secured.token_file),
        f"{of_brokers}.ssl.keystore.type": "PEM",
        f"{of_brokers}.ssl.keystore.location": str(secured.broker_file(plain.node_id)),
        f"{of_brokers}.ssl.truststore.type": "PEM",
        f"{of_brokers}.ssl.truststore.location": str(secured.authority_file),
        f"{of_brokers}.ssl.client.auth": "required",
        f"{of_brokers}.ssl.principal.mapping.rules": f"RULE:^CN={BROKER_NAME}[0-9]+$/{_BROKERS_USER}/,DEFAULT",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMIN_USER};User:{_BROKERS_USER}",
    }
    if "inter.broker.listener.name" not in plain.configured:
        found["security.inter.broker.protocol"] = "SSL"
        first = plain.listeners[0].address
        if not first.loopback:  # brokers of other machines have to reach this one too
            port = first.port + _BROKERS_PORT_ABOVE
            is_port = first.port and port <= _PORT_MAX
            found["thermocline.internal"] = show_address(first.host or "0.0.0.0", port if is_port else 0)
    if admin_password is not None:
        for listener in plain.listeners:
            if listener.protocol.uses_sasl and listener.name != plain.brokers_listener:
                found[jaas_name(listener.name, MECHANISM)] = jaas(ADMIN_USER, admin_password)
    return found


def listener_text(listen: str) -> str:
    """`--listen` with the protocol for addresses without one."""
    parts = (part.strip() for part in listen.split(","))
    return ",".join(part if "://" in part else f"{LISTENER}://{part}" for part in parts)


def jaas(user: str, password: str) -> str:
    return f'{LOGIN_MODULES[MECHANISM]} required username="{user}" password="{password}";'


def java_client(user: str, password: str, authority_pem: str, bootstrap: str | None) -> dict[str, str]:
    """Properties of Kafka's Java clients and tools, and of `--command-config`."""
    return ({} if bootstrap is None else {"bootstrap.servers": bootstrap}) | {
        "security.protocol": LISTENER,
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": jaas(user, password),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority_pem,
    }


def librdkafka_client(user: str, password: str, authority_file: str, bootstrap: str | None) -> bytes:
    """A configuration for librdkafka and clients based on it (confluent-kafka, kcat): lines of `name=value`, without
    Java's escapes."""
    found = ({} if bootstrap is None else {"bootstrap.servers": bootstrap}) | {
        "security.protocol": LISTENER,
        "sasl.mechanisms": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": authority_file,
    }
    return "".join(f"{name}={value}\n" for name, value in found.items()).encode()
