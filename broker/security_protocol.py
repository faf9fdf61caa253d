"""Security protocols of listeners, by Kafka's names (`org.apache.kafka.common.security.auth.SecurityProtocol`)."""

from __future__ import annotations

from enum import StrEnum


class SecurityProtocol(StrEnum):
    """Protocol of a listener or of a connection to one."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
