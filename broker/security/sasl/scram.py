"""SCRAM: keys and messages of both sides (RFC 5802, RFC 7677).

As in Kafka there is no channel binding, and a password is its UTF-8 text without SASLprep.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

from broker.security_protocol import SCRAM_SHA_256, SCRAM_SHA_512

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
NUMBERS: Final = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
MECHANISM_OF: Final = {number: mechanism for mechanism, number in NUMBERS.items()}
"""Mechanisms by their number in requests (KIP-554)."""
ITERATIONS_MIN: Final = 4096
"""Iterations used by Kafka's tools and ours. Unknown users appear to have them, too; another number would reveal that a
user exists."""
ITERATIONS_MAX: Final = 16_384
_CLIENT_ITERATIONS_MAX: Final = 1_000_000  # limit on a server that this broker logs in to
SALT_BYTES: Final = 20
SECRET_BYTES: Final = 32  # size of a cluster's secret for the salts of unknown users
"""Length of salts, as Kafka's tools make them. Salts of unknown users have it too."""
MESSAGE_BYTES_MAX: Final = 8 << 10
_GS2: Final = "n,,"
_PRINTABLE: Final = re.compile(r"[!-+\--~]+", re.ASCII)  # the comma separates attributes


class ScramSyntax(Exception):
    """A message that cannot be parsed. The error's text does not repeat the message."""


class Keys(NamedTuple):
    """The credential that a server stores in place of a password."""

    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of the RFC. Thousands of iterations take milliseconds, so this never runs on a broker's loop."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def keys_of(mechanism: str, salted: bytes) -> Keys:
    client_key = _hmac(mechanism, salted, b"Client Key")
    return Keys(_hash(mechanism, client_key), _hmac(mechanism, salted, b"Server Key"))


def client_proof(mechanism: str, salted: bytes, auth_message: bytes) -> bytes:
    client_key = _hmac(mechanism, salted, b"Client Key")
    signature = _hmac(mechanism, _hash(mechanism, client_key), auth_message)
    return _xor(client_key, signature)


def is_proof(mechanism: str, stored_key: bytes, auth_message: bytes, proof: bytes) -> bool:
    """Whether `proof` was made with the password of `stored_key`. The comparison takes constant time."""
    signature = _hmac(mechanism, stored_key, auth_message)
    if len(proof) != len(signature):
        proof = bytes(len(signature))
    return hmac.compare_digest(_hash(mechanism, _xor(proof, signature)), stored_key)


def server_signature(mechanism: str, server_key: bytes, auth_message: bytes) -> bytes:
    return _hmac(mechanism, server_key, auth_message)


def _hmac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, HASHES[mechanism])


def _hash(mechanism: str, text: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], text).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    assert len(one) == len(other)
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


# -- messages ---------------------------------------------------------------------------------------------------------


class ClientFirst(NamedTuple):
    """`n,[a=authorization id],n=user,r=nonce[,extensions]`. `bare` is the part that the signature covers, `gs2` the
    part before it."""

    gs2: str
    acts_as: str
    user: str
    nonce: str
    bare: str


class ClientFinal(NamedTuple):
    """`c=channel binding,r=nonce[,extensions],p=proof`. `without_proof` is the part that the signature covers."""

    binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


class ServerFirst(NamedTuple):
    nonce: str
    salt: bytes
    iterations: int


def read_client_first(message: bytes) -> ClientFirst:
    """Parse a client's first message. Raises ScramSyntax, also for a channel binding (`p=`, `y`), which Kafka
    refuses."""
    text = _text(message)
    flag, comma, rest = text.partition(",")
    acts_as, second, bare = rest.partition(",")
    if flag != "n" or not comma or not second:
        raise ScramSyntax("the message requests a channel binding, or is not a client-first message")
    if acts_as and not acts_as.startswith("a="):
        raise ScramSyntax("the authorization id cannot be read")
    attributes = bare.split(",")
    if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
        raise ScramSyntax("the message has no user or no nonce, or needs an extension")
    user, nonce = _unescaped(attributes[0][2:]), _nonce(attributes[1][2:])
    if not user:
        raise ScramSyntax("the user name is empty")
    return ClientFirst(f"n,{acts_as},", _unescaped(acts_as[2:]), user, nonce, bare)


def client_first(user: str, nonce: str) -> bytes:
    return f"{_GS2}n={escaped(user)},r={nonce}".encode()


def read_client_final(message: bytes) -> ClientFinal:
    """Parse a client's final message. Raises ScramSyntax."""
    text = _text(message)
    without_proof, comma, proof = text.rpartition(",p=")
    attributes = without_proof.split(",")
    if not comma or len(attributes) < 2 or not attributes[0].startswith("c=") or not attributes[1].startswith("r="):
        raise ScramSyntax("the message is not a client-final message")
    return ClientFinal(_bytes(attributes[0][2:]), _nonce(attributes[1][2:]), _bytes(proof), without_proof)


def server_first(nonce: str, salt: bytes, iterations: int) -> str:
    return f"r={nonce},s={b64encode(salt).decode()},i={iterations}"


def read_server_first(message: bytes) -> ServerFirst:
    """Parse a server's first message. Raises ScramSyntax, also if there are so many iterations that the hashes would
    take minutes."""
    attributes = _text(message).split(",")
    if len(attributes) < 3 or [one[:2] for one in attributes[:3]] != ["r=", "s=", "i="]:
        raise ScramSyntax("the message is not a server-first message")
    count = attributes[2][2:]
    is_number = count.isascii() and count.isdigit() and len(count) < 8
    if not (is_number and ITERATIONS_MIN <= int(count) <= _CLIENT_ITERATIONS_MAX):
        raise ScramSyntax(f"the number of iterations is not {ITERATIONS_MIN} to {_CLIENT_ITERATIONS_MAX}")
    return ServerFirst(_nonce(attributes[0][2:]), _bytes(attributes[1][2:]), int(count))


def read_server_final(message: bytes) -> bytes:
    """The server's signature. Raises ScramSyntax, also for an error (`e=…`)."""
    text = _text(message)
    if not text.startswith("v="):
        raise ScramSyntax("the message is not a server-final message")
    return _bytes(text[2:].partition(",")[0])


def escaped(name: str) -> str:
    """The name in the form of the RFC's saslname."""
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    rest = name.replace("=2C", "").replace("=3D", "")
    if "=" in rest:
        raise ScramSyntax("a name holds an unescaped '='")
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramSyntax(f"the message has {len(message)} bytes, but at most {MESSAGE_BYTES_MAX} are read")
    try:
        text = bytes(message).decode()
    except UnicodeDecodeError:
        raise ScramSyntax("the message is not UTF-8") from None
    if "\0" in text:
        raise ScramSyntax("the message contains a NUL")
    return text


def _nonce(text: str) -> str:
    if _PRINTABLE.fullmatch(text) is None:
        raise ScramSyntax("the nonce is empty or not printable")
    return text


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramSyntax("a value is not valid base64") from None
