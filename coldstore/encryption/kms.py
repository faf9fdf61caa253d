"""Key services, which wrap the key-encryption keys.

The key file alone then decrypts nothing. A process asks the service once for each key, not for each object, so an
outage of the service does not stop a running broker. boto3 is loaded only if a key is needed. All calls block.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, Protocol

import msgspec

from coldstore.object_store import AccessRefused, StoreUnavailable
from logformat.errors import InvalidRequest

_CONNECT_S: Final = 5
_READ_S: Final = 10
_ATTEMPTS: Final = 3


class KmsKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A wrapped key: the id of the AWS KMS key that wrapped it, and the wrapped bytes in base64."""

    key_id: str
    ciphertext: str
    region: str | None = None
    endpoint: str | None = None


class KeyService(Protocol):
    """Wraps and unwraps one key. `context` is bound to the ciphertext, so the ciphertext of another key cannot be
    unwrapped."""

    def wrap(self, secret: bytes, context: str) -> bytes: ...
    def unwrap(self, wrapped: bytes, context: str) -> bytes:
        """The unwrapped bytes. Raises AccessRefused, StoreUnavailable."""
        ...


class AwsKms:
    """The `KeyService` of AWS KMS. Credentials come from the usual chain. They need kms:Encrypt to make keys and
    kms:Decrypt to use them."""

    def __init__(self, key_id: str, region: str | None = None, endpoint: str | None = None) -> None:
        import boto3
        from botocore.client import Config

        self._key_id = key_id
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            user_agent_appid="thermocline",
        )
        self._client: Any = boto3.session.Session().client(
            "kms", config=config, region_name=region or _region_of(key_id), endpoint_url=endpoint
        )

    def wrap(self, secret: bytes, context: str) -> bytes:
        answer = self._call("encrypt", Plaintext=secret, context=context)
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, wrapped: bytes, context: str) -> bytes:
        answer = self._call("decrypt", CiphertextBlob=wrapped, context=context)
        return bytes(answer["Plaintext"])

    def _call(self, operation: str, *, context: str, **parameters: Any) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        what = f"AWS KMS {operation} with {self._key_id}"
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(
                KeyId=self._key_id, EncryptionContext={"thermocline-key": context}, **parameters
            )
        except ClientError as refused:
            status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = refused.response.get("Error", {}).get("Code", "")
            if 400 <= status < 500 and "Throttl" not in code and code != "LimitExceededException":
                raise AccessRefused(
                    f"{what}: {code or status}; is the key enabled, and may this process use it?"
                ) from refused
            raise StoreUnavailable(f"{what}: {code or status}; try again") from refused
        except BotoCoreError as failure:
            raise StoreUnavailable(f"{what}: {failure}; try again") from failure
        return answer


def _region_of(key_id: str) -> str | None:
    """The region in a key's ARN, arn:aws:kms:REGION:…; None to use the usual chain."""
    parts = key_id.split(":")
    return parts[3] if len(parts) > 4 and parts[0] == "arn" else None


def wrapped_by_aws(secret: bytes, name: str, key_id: str, region: str | None, endpoint: str | None) -> KmsKey:
    """`secret`, wrapped by the KMS key `key_id`. `name`: the secret's id in the key file. Raises AccessRefused,
    StoreUnavailable."""
    wrapped = AwsKms(key_id, region, endpoint).wrap(secret, name)
    return KmsKey(key_id, base64.b64encode(wrapped).decode(), region, endpoint)


_UNWRAPPED: Final[dict[tuple[KmsKey, str], bytes]] = {}  # one for each entry of the key files


def unwrapped_once(key: KmsKey, name: str, service: KeyService | None) -> bytes:
    """The bytes of `key`. The service is asked once per process. Raises InvalidRequest, AccessRefused,
    StoreUnavailable."""
    found = _UNWRAPPED.get((key, name))
    if found is None:
        try:
            wrapped = base64.b64decode(key.ciphertext, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"key {name!r}: its ciphertext is not base64") from None
        asked = service if service is not None else AwsKms(key.key_id, key.region, key.endpoint)
        found = _UNWRAPPED[key, name] = asked.unwrap(wrapped, name)
    return found
