"""TLS and login of our own client, by this command's client configuration. The client reads PEM files only, like
librdkafka."""

from __future__ import annotations

import secrets
import socket
import ssl

from broker.config.network.sasl import Login, TokenLogin
from broker.security.sasl.client_login import BearerLogin, ClientLogin
from thermocline.cli.clients.client_properties import ClientProperties, TlsFiles
from thermocline.cli.terminal.outcome import CommandFailed, Exit


def secured(connected: socket.socket, host: str, properties: ClientProperties) -> socket.socket:
    """The socket, over TLS if the protocol uses TLS. After an error the socket is closed. Raises OSError,
    CommandFailed."""
    if not properties.protocol.uses_tls:
        return connected
    try:
        return context_of(properties.tls).wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise


def context_of(files: TlsFiles) -> ssl.SSLContext:
    """Raises CommandFailed for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=files.ca_file, cadata=files.ca_pem)
        if files.certificate_file:
            context.load_cert_chain(files.certificate_file, files.key_file, files.key_password)
    except (OSError, ValueError) as unreadable:  # SSLError is an OSError
        named = " or ".join(filter(None, (files.ca_file, files.certificate_file))) or "ssl.ca.pem"
        raise CommandFailed(f"{named}: TLS cannot use the PEM files: {unreadable}", Exit.USAGE) from unreadable
    context.check_hostname = files.checks_name and files.checks_certificate
    if not files.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    return context


def new_login(login: Login) -> ClientLogin | BearerLogin:
    """One login of this command."""
    if isinstance(login, TokenLogin):
        return BearerLogin(lambda: _read_token(login.token_file))
    return ClientLogin(login, secrets.token_hex(24))


def _read_token(path: str) -> str:
    if not path:
        raise CommandFailed(
            "OAUTHBEARER by a token endpoint is served by produce, consume, topic and group only; for this command "
            'name a token file: sasl.jaas.config=…OAuthBearerLoginModule required tokenFile="…";',
            Exit.USAGE,
        )
    with open(path, encoding="ascii") as file:
        return file.read()
