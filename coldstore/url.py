"""Bucket URLs.

A parsed URL has no unknown parameter and no credentials; credentials come only from the usual chain. No message repeats
a text that may have a secret in it.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from coldstore.stores.limits import check_key
from logformat.errors import InvalidRequest

SYNTAX = (
    "file:///abs/dir[?key_file=/abs/keys.json] or s3://bucket[/prefix][?endpoint=http://127.0.0.1:9000"
    "&region=us-east-1&path_style=true&storage_class=STANDARD_IA&sse=aws:kms&sse_key=ARN&key_file=/abs/keys.json]"
)
KEY_FILE_VARIABLE = "THERMOCLINE_ENCRYPTION_KEY_FILE"
"""Environment variable with the key file of programs that have no broker's configuration (`with_key_file`)."""
_KEY_FILE_NAMES = f"thermocline.encryption.key.file or {KEY_FILE_VARIABLE}"
DEFAULT_REGION = "us-east-1"  # the default of S3-compatible stores
_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_SECRETS = re.compile(r"key_?id|access|secret|token|password|credential|user", re.IGNORECASE)
_SSE = ("AES256", "aws:kms", "aws:kms:dsse")


class DirectoryUrl(msgspec.Struct, frozen=True):
    """A directory as the bucket. `path` is absolute and normalised. If `key_file` is set, the objects are encrypted."""

    path: str
    key_file: str | None = None

    def printed(self) -> str:
        query = "" if self.key_file is None else "?key_file=" + quote(self.key_file)
        return "file://" + quote(self.path) + query


class S3Url(msgspec.Struct, frozen=True):
    """A bucket of an S3-compatible store, or its part below `prefix` (without slashes at the beginning and end)."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None  # None: Amazon's endpoint for the region
    region: str | None = None  # None: the usual chain
    path_style: bool | None = None  # None: true with an endpoint, because few of them have a host name for each bucket
    storage_class: str | None = None
    sse: str | None = None
    sse_key: str | None = None
    key_file: str | None = None  # file of the keys that encrypt objects before they are sent

    def printed(self) -> str:
        """The URL for display and for `parse_bucket_url`, without user info."""
        path_style = None if self.path_style is None else str(self.path_style).lower()
        pairs = (
            ("endpoint", self.endpoint),
            ("region", self.region),
            ("path_style", path_style),
            ("storage_class", self.storage_class),
            ("sse", self.sse),
            ("sse_key", self.sse_key),
            ("key_file", self.key_file),
        )
        query = urlencode([pair for pair in pairs if pair[1] is not None], safe=":/")
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket}{path}" + (f"?{query}" if query else "")


BucketUrl = DirectoryUrl | S3Url


def with_key_file(url: BucketUrl, path: str | None) -> BucketUrl:
    """The URL with `path` as its key file, unless it has a key file already."""
    return url if url.key_file is not None or not path else replace(url, key_file=_key_file(path, _KEY_FILE_NAMES))


def parse_bucket_url(text: str) -> BucketUrl:
    """A bucket URL from a config or the command line. Raises InvalidRequest with the reason."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme == "file":
        return _directory_url(text)
    if separator and scheme == "s3":
        return _s3_url(text)
    if separator:
        kind = f"scheme {scheme!r} is not known"
    elif text.startswith(("s3:", "file:")):
        kind = "two slashes belong after the colon, and a third before the path of a directory"
    else:
        kind = "it has no scheme"
    raise InvalidRequest(f"bucket URL: {kind}; write {SYNTAX}")


def _directory_url(text: str) -> DirectoryUrl:
    address, question, query = text.partition("?")
    key_file = _key_file(unquote(query[len("key_file=") :])) if query.startswith("key_file=") else None
    if (question and key_file is None) or "&" in query or "#" in text:
        raise InvalidRequest(
            "bucket URL: file:///abs/dir takes no parameters but key_file (write %3F or %23 for ? and # in a name)"
        )
    path = unquote(address[len("file://") :])
    if not path.startswith("/") or "\0" in path:
        raise InvalidRequest("bucket URL: a directory bucket is file:///abs/dir, with three slashes")
    path = "/" + posixpath.normpath(path).lstrip("/")
    if path == "/":
        raise InvalidRequest("bucket URL: the root directory cannot be a bucket")
    return DirectoryUrl(path, key_file)


def _key_file(path: str, name: str = "bucket URL: key_file") -> str:
    if not path.startswith("/") or "\0" in path:
        raise InvalidRequest(f"{name} must be an absolute path")
    return path


def _s3_url(text: str) -> S3Url:
    try:
        split = urlsplit(text)
        pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=True) if split.query else []
    except ValueError:
        raise InvalidRequest(f"bucket URL: not a URL; write {SYNTAX}") from None
    if "@" in split.netloc:
        raise InvalidRequest(
            "bucket URL: credentials do not belong in it; they come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "a profile or the machine's role. If the one you typed was real, revoke it"
        )
    if not _BUCKET.fullmatch(split.netloc) or split.fragment:
        raise InvalidRequest(f"bucket URL: no valid bucket name after s3://; write {SYNTAX}")
    prefix = unquote(split.path).strip("/")
    if prefix:
        check_key(prefix)
    url = S3Url(split.netloc, prefix)
    seen: set[str] = set()
    for name, value in pairs:
        if name in seen:
            raise InvalidRequest(f"bucket URL: parameter {name} is given twice")
        seen.add(name)
        url = _with_parameter(url, name, value)
    if url.sse_key is not None and url.sse not in ("aws:kms", "aws:kms:dsse"):
        raise InvalidRequest("bucket URL: sse_key needs sse=aws:kms")
    return url


def _with_parameter(url: S3Url, name: str, value: str) -> S3Url:
    if name not in _PARAMETERS:
        if _SECRETS.search(name):
            raise InvalidRequest(f"bucket URL: {name} does not belong in it; credentials come by the usual AWS chain")
        near = difflib.get_close_matches(name, _PARAMETERS, n=1, cutoff=0.0)
        raise InvalidRequest(f"bucket URL: unknown parameter {name!r}; did you mean {near[0]!r}?")
    if not value:
        raise InvalidRequest(f"bucket URL: parameter {name} is empty")
    return _PARAMETERS[name](url, value)


def _endpoint(url: S3Url, value: str) -> S3Url:
    try:
        split = urlsplit(value)
        usable = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in value or split.query or split.fragment or split.path not in ("", "/"):
        raise InvalidRequest("bucket URL: endpoint is http(s)://host[:port], without user info, path or parameters")
    return replace(url, endpoint=value.rstrip("/"))


def _path_style(url: S3Url, value: str) -> S3Url:
    if value not in ("true", "false"):
        raise InvalidRequest("bucket URL: path_style is true or false")
    return replace(url, path_style=value == "true")


def _sse(url: S3Url, value: str) -> S3Url:
    if value not in _SSE:
        raise InvalidRequest(f"bucket URL: sse is one of {', '.join(_SSE)}")
    return replace(url, sse=value)


_PARAMETERS: dict[str, Callable[[S3Url, str], S3Url]] = {
    "endpoint": _endpoint,
    "region": lambda url, value: replace(url, region=value),
    "path_style": _path_style,
    "storage_class": lambda url, value: replace(url, storage_class=value),
    "sse": _sse,
    "sse_key": lambda url, value: replace(url, sse_key=value),
    "key_file": lambda url, value: replace(url, key_file=_key_file(value)),
}
