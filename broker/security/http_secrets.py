"""Secrets of the HTTP port: bearer tokens and `user:password` pairs, one on each line of `thermocline.http.token.file`.

A new file that cannot be used is refused, and the old secrets stay in use. Secrets are compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from broker.config.values import InvalidConfig

ReadFile = Callable[[str], bytes]
_CONFIG: Final = "thermocline.http.token.file"
_SECRET_CHARS_MIN: Final = 16


class HttpSecrets:
    """The secrets of one file. The constructor blocks, and raises InvalidConfig if the file cannot be used."""

    where: Final = "the secrets of the HTTP port"

    def __init__(self, path: str, read: ReadFile) -> None:
        self._path = path
        self._read = read
        self._digests = self._make()

    @property
    def says(self) -> str:
        return f"{len(self._digests)} in use"

    def allows(self, authorization: str) -> bool:
        """Whether the Authorization header of a request has one of the secrets."""
        scheme, _, given = authorization.strip().partition(" ")
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(given, validate=True)
            except (ValueError, binascii.Error):
                return False
        elif scheme.lower() == "bearer":
            secret = given.strip().encode(errors="surrogateescape")  # a header may have bytes that are not UTF-8
        else:
            return False
        digest, found = _digest(secret), False
        for known in self._digests:  # compares with all, so that the time does not show which one matches
            found |= hmac.compare_digest(digest, known)
        return found

    def reload(self) -> bool:
        """Read the file again. Returns whether the secrets changed. Blocking. If this raises InvalidConfig, the old
        secrets stay."""
        digests = self._make()
        changed, self._digests = digests != self._digests, digests
        return changed

    def _make(self) -> tuple[bytes, ...]:
        try:
            lines = self._read(self._path).decode().splitlines()
        except OSError as failed:
            raise InvalidConfig(
                f"{_CONFIG}={self._path} cannot be read: {failed.strerror}; name a file that this process may read"
            ) from failed
        except UnicodeDecodeError:
            raise InvalidConfig(f"{_CONFIG}={self._path} is not UTF-8 text") from None
        secrets = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not secrets or any(len(secret) < _SECRET_CHARS_MIN for secret in secrets):
            raise InvalidConfig(
                f"{_CONFIG}={self._path}: write one secret of {_SECRET_CHARS_MIN} characters or more a line, for "
                "example of `openssl rand -hex 32`"
            )
        return tuple(_digest(secret.encode()) for secret in secrets)


def _digest(secret: bytes) -> bytes:
    """A digest, so that all compared values have one length."""
    return hashlib.sha256(secret).digest()
