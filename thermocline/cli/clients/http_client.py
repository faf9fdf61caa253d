"""Blocking GET and POST requests to a broker's HTTP port, one connection each.

The port's certificate is verified by the command's client configuration. The HTTP token is sent within this machine, or
over TLS if the user's files name the port's CA or the connection to the brokers uses TLS. The address of the port comes
from a broker. An attacker who can change a connection without TLS could replace it by the address of his own port, with
a certificate of any public CA.
"""

from __future__ import annotations

import http
import http.client
import select
import ssl
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.config.network.addresses import Address, show_address
from thermocline.cli.clients.advice import tls_advice
from thermocline.cli.clients.connection_properties import current
from thermocline.cli.clients.secured_socket import context_of

_TIMEOUT_S: Final = 5.0
_SEAL_TIMEOUT_S: Final = 3700.0  # the broker's own timeout is an hour
_POLL_S: Final = 2.0
_GIVE_TOKEN: Final = "give it as thermocline.http.token in --command-config"
_TRUST_PORT: Final = (
    "thermocline.http.token is sent only over TLS, and only with ssl.ca.location, or a security.protocol with TLS, in "
    "--command-config"
)


class HttpRefused(Exception):
    """There was no response, or an error response; the message says which."""


class TokenRefused(HttpRefused):
    """The port refused the command's HTTP token, or asks for one that the command does not have."""


class HttpAddress(NamedTuple):
    host: str
    port: int
    uses_tls: bool = False

    def url(self, path: str) -> str:
        return f"{'https' if self.uses_tls else 'http'}://{show_address(self.host, self.port)}{path}"


def get(address: HttpAddress, path: str, timeout_s: float = _TIMEOUT_S) -> bytes:
    """The body of a response with status 200. Raises HttpRefused for any other outcome."""
    return _request(address, "GET", path, None, timeout_s)


def post_json(
    address: HttpAddress,
    path: str,
    body: str,
    waiting: Callable[[], None] | None = None,
    timeout_s: float = _SEAL_TIMEOUT_S,
) -> bytes:
    """The body of a successful response. Raises HttpRefused for any other outcome. Calls `waiting` every two seconds
    until the response arrives.
    """
    return _request(address, "POST", path, body, timeout_s, waiting)


def _request(
    address: HttpAddress,
    method: str,
    path: str,
    body: str | None,
    timeout_s: float,
    waiting: Callable[[], None] | None = None,
) -> bytes:
    connection = _connection(address, timeout_s)
    deadline_s = time.monotonic() + timeout_s
    try:
        headers = _authorization(address) | ({} if body is None else {"Content-Type": "application/json"})
        connection.request(method, path, body, headers)
        while waiting is not None and time.monotonic() < deadline_s:
            if select.select([connection.sock], [], [], _POLL_S)[0]:
                break
            waiting()
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as failed:
        advice = f"; {tls_advice(failed)}" if isinstance(failed, ssl.SSLError) else ""
        raise HttpRefused(f"no answer from {address.url(path)} ({failed}){advice}") from failed
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        advice = _GIVE_TOKEN if _may_have_token(address) else _TRUST_PORT
        raise TokenRefused(f"{address.url(path)} needs a token: {advice}")
    if not 200 <= answer.status < 300:
        text = data.decode(errors="replace").strip()
        raise HttpRefused(f"{address.url(path)} answered {answer.status} {text}")
    return data


def _connection(address: HttpAddress, timeout_s: float) -> http.client.HTTPConnection:
    if not address.uses_tls:
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=context_of(current().tls))


def _authorization(address: HttpAddress) -> dict[str, str]:
    token = current().http_token
    return {"Authorization": f"Bearer {token}"} if token and _may_have_token(address) else {}


def _may_have_token(address: HttpAddress) -> bool:
    own = current()
    is_named_safely = own.protocol.uses_tls or own.tls.ca_file is not None or own.tls.ca_pem is not None
    return (address.uses_tls and is_named_safely) or Address("", address.host, address.port).loopback
