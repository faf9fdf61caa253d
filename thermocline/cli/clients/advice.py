"""Advice for a failed connection to a broker. Pure."""

from __future__ import annotations

import ssl
from typing import Final

CLOSED: Final = "it closed the connection"
_GIVE: Final = "give --command-config (security.protocol)"

# X509_V_ERR_… of OpenSSL (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED, _HOST_DIFFERS, _ADDRESS_DIFFERS = 9, 10, 62, 64
_OF_CERTIFICATE: Final = {
    _NOT_YET_VALID: "the broker's certificate is not valid yet: check the clocks of both machines",
    _EXPIRED: "renew the broker's certificate, on its machine: `thermocline certificate renew`",
    _HOST_DIFFERS: "use a name that the broker's certificate has, such as the advertised one (--advertise)",
    _ADDRESS_DIFFERS: "use an address or name that the broker's certificate has, such as the advertised one",
}


def running_advice(bootstrap_file: str | None, *, is_ready: bool = False) -> str:
    """Advice for an address without an answer. `bootstrap_file`: the file that has the address if there is no `-b`;
    `is_ready`: the port may be open, but the broker not ready.
    """
    ready = " and ready (GET /readyz)" * is_ready
    if bootstrap_file is None:
        return f"is the broker running{ready}, and is -b its address?"
    return f"is the broker running{ready}, and is this its address (from bootstrap.servers of {bootstrap_file})?"


def tls_advice(failed: ssl.SSLError) -> str:
    """Advice for a failed TLS handshake, and for a connection that the broker ended with an alert."""
    if isinstance(failed, ssl.SSLCertVerificationError) and failed.verify_code in _OF_CERTIFICATE:
        return _OF_CERTIFICATE[failed.verify_code]
    reason = failed.reason or ""
    if reason.endswith("ALERT_CERTIFICATE_REQUIRED"):
        return (
            "that port wants a client certificate (ssl.keystore.location); it may be the brokers' port, which clients "
            "do not use"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or reason.endswith("UNKNOWN_CA")):
        return "the broker refused the certificate of ssl.keystore.location: does it trust the CA that signed it?"
    return "does this port speak TLS, and is its CA the one of ssl.ca.location (ssl.truststore.location)?"


def closed_advice(running: str, *, uses_tls: bool) -> str:
    """Advice for a connection without a login that ended without an answer. A port that requires TLS or a login ends
    such a connection. `running`: the result of `running_advice`.
    """
    wanted = "a login" if uses_tls else "TLS or a login"
    return f"{running} The port may want {wanted}: {_GIVE}"
