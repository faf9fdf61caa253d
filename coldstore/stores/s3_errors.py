"""Maps S3 status codes and botocore's exceptions to the errors of `coldstore.object_store`.

Only 412 (and 404 to If-Match) and 409 have an error of their own for conditional writes. Other failures are
StoreUnavailable, because the write may have happened.
"""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)

from coldstore.object_store import (
    AccessRefused,
    ChecksumRefused,
    ConditionalConflict,
    ObjectMissing,
    PreconditionFailed,
    StoreAway,
    StoreThrottled,
    StoreUnavailable,
)
from logformat.errors import InvalidRequest, ThermoclineError

NO_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    ProfileNotFound,
)
# Temporary refusals (or a wrong clock) with a 4xx status. After NoSuchUpload the upload may be complete, because the
# answer of an earlier attempt was lost (T8).
_PASSING = frozenset(
    {"RequestTimeout", "RequestTimeTooSkewed", "IncompleteBody", "SlowDown", "OperationAborted", "NoSuchUpload"}
)
# 503 is SlowDown or an overloaded store. In both cases fewer requests should be sent.
_THROTTLED = frozenset({429, 503})
_AWAY = frozenset({502, 504, 507})  # the store or its proxy did not process the request
_CHECKSUM = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
_CREDENTIALS = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "AuthorizationHeaderMalformed"})


def refusal(what: str, status: int, code: str, message: str, *, conditional: bool = False) -> ThermoclineError:
    """The error for an answer with an error status. `what` names operation, key and bucket."""
    text = f"{what}: {status} {code} {message}".rstrip()
    if code in _CHECKSUM:
        return ChecksumRefused(text)
    if status in _THROTTLED:
        return StoreThrottled(text)
    if status in _AWAY:
        return StoreAway(text)
    if conditional:
        if status in (404, 412) and code != "NoSuchBucket":
            return PreconditionFailed(text)
        if status == 409:
            return ConditionalConflict(text)
        if status not in (401, 403):
            return StoreUnavailable(text)
    if code in _PASSING or status >= 500 or status in (408, 409, 412):
        return StoreUnavailable(text)
    if status in (401, 403) or code in _CREDENTIALS:
        return AccessRefused(f"{text}; check the credentials and the bucket's policy")
    if code == "NoSuchBucket":
        return AccessRefused(f"{text}; create the bucket or correct its name")
    if status == 404:
        return ObjectMissing(text)
    if 400 <= status < 500:
        return InvalidRequest(text)
    return StoreUnavailable(text)


def mapped(failure: Exception, what: str, *, conditional: bool = False) -> ThermoclineError:
    """The error for an exception of the clients."""
    if isinstance(failure, ClientError):
        error = failure.response.get("Error", {})
        status = int(failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return refusal(what, status, str(error.get("Code", "")), str(error.get("Message", "")), conditional=conditional)
    if isinstance(failure, NO_CREDENTIALS):
        return AccessRefused(f"{what}: {failure}; credentials come by the usual AWS chain")
    if isinstance(failure, ParamValidationError):
        return InvalidRequest(f"{what}: {failure}")
    kind = "" if isinstance(failure, BotoCoreError) else f"{type(failure).__name__}: "
    return StoreAway(f"{what}: {kind}{failure}")
