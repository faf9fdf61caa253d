"""A small S3 server in a thread, whose next answers a test scripts; and the quirks of known providers.

Owns objects, multipart uploads, and what each request is answered. `script` takes (method, part of the target, kind)
and applies it once, to the first request that fits. Kinds: `lost` (done, then the connection closes), `409` / `412` /
`503` (not done), `done409` (done, and answered 409), `empty200`, `garbage200` (done, answered so), `error200` (not
done, answered 200 with an <Error>), `404` (done, answered NoSuchUpload). `quirks`: `match_missing` (If-Match on a
missing key creates it: MinIO), `none_match_ignored` (If-None-Match: * is not known), `304` (for a refused condition).
Knows nothing of the project; what it does is for one bucket, unsigned, and one client at a time.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.net.http_stand_in import QuietHandler, http_server

PAGE = 1000
ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>scripted</Message></Error>'
CODES = {
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    503: "SlowDown",
    400: "MalformedXML",
    304: "NotModified",
}


@dataclass
class ScriptedS3:
    """What the handler works on. `log`: (method, target) of every request, in order of arrival."""

    objects: dict[str, tuple[bytes, str, str]] = field(default_factory=dict)  # key: (bytes, ETag, CRC32C or "")
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    scripts: list[tuple[str, str, str]] = field(default_factory=list)
    hits: int = 0
    quirks: set[str] = field(default_factory=set)
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def script(self, method: str, match: str, kind: str, times: int = 1) -> None:
        self.scripts += [(method, match, kind)] * times

    def take(self, method: str, target: str) -> str:
        for entry in self.scripts:
            if entry[0] == method and entry[1] in target:
                self.scripts.remove(entry)
                self.hits += 1
                return entry[2]
        return ""

    def sent(self, method: str, match: str) -> int:
        return sum(1 for sent, target in self.log if sent == method and match in target)


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    state: ScriptedS3

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        key = unquote(split.path).removeprefix("/").partition("/")[2]
        with self.state.lock:
            self.state.log.append((self.command, self.path))
            kind = self.state.take(self.command, self.path)
            if kind in ("409", "412", "503"):
                return self.answer(int(kind), ERROR.format(CODES[int(kind)]))
            if kind == "error200":
                return self.answer(200, ERROR.format("InternalError"), {"ETag": '"0"'})
            status, text, headers = self.perform(key, query, body)
            match kind:
                case "lost":
                    self.close_connection = True
                    self.wfile.flush()
                    self.connection.close()
                    return None
                case "done409":
                    return self.answer(409, ERROR.format(CODES[409]))
                case "404":
                    return self.answer(404, ERROR.format("NoSuchUpload"))
                case "empty200":
                    return self.answer(200, "")
                case "garbage200":
                    return self.answer(200, "\0<<< not what was asked for")
            return self.answer(status, text, headers)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def answer(self, status: int, body: str | bytes, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.command == "HEAD":
            self.end_headers()
            return
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status != 304:
            self.wfile.write(data)

    def perform(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, str | bytes, dict[str, str]]:
        match self.command:
            case "PUT" if "partNumber" in query:
                self.state.uploads[query["uploadId"]][int(query["partNumber"])] = body
                return 200, "", {"ETag": _etag(body)}
            case "PUT":
                return self.put(key, body)
            case "POST" if "uploads" in query:
                upload = f"u{len(self.state.uploads)}"
                self.state.uploads[upload] = {}
                return 200, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>"), {}
            case "POST" if "uploadId" in query:
                parts = self.state.uploads.pop(query["uploadId"], None)
                if parts is None:
                    return 404, ERROR.format("NoSuchUpload"), {}
                data = b"".join(parts[number] for number in sorted(parts))
                etag = self.store(key, data)
                return 200, _xml("CompleteMultipartUploadResult", f"<ETag>{etag}</ETag>"), {}
            case "POST" if "delete" in query:
                return self.delete_many(body.decode())
            case "DELETE":
                gone = self.state.uploads.pop(query.get("uploadId", ""), None)
                return (204, "", {}) if gone is not None else (404, ERROR.format("NoSuchUpload"), {})
            case "GET" if "list-type" in query:
                return self.list(query)
            case _:
                return self.get(key)

    def store(self, key: str, data: bytes) -> str:
        etag = _etag(data)
        self.state.objects[key] = (data, etag, self.headers.get("x-amz-checksum-crc32c", ""))
        return etag

    def put(self, key: str, body: bytes) -> tuple[int, str, dict[str, str]]:
        found, quirks = self.state.objects.get(key), self.state.quirks
        wanted = self.headers.get("If-Match")
        refused = "If-None-Match" in self.headers and found is not None and "none_match_ignored" not in quirks
        if wanted is not None and found is None and "match_missing" not in quirks:
            return 404, ERROR.format("NoSuchKey"), {}
        refused |= wanted is not None and found is not None and found[1] != wanted
        if refused:
            status = 304 if "304" in quirks else 412
            return status, ERROR.format(CODES[status]), {}
        etag = self.store(key, body)
        return 200, "", {"ETag": etag, "x-amz-checksum-crc32c": self.state.objects[key][2]}

    def get(self, key: str) -> tuple[int, bytes | str, dict[str, str]]:
        found = self.state.objects.get(key)
        if found is None:
            return 404, ERROR.format("NoSuchKey"), {}
        data, etag, crc = found
        headers = {"ETag": etag} | ({"x-amz-checksum-crc32c": crc} if crc else {})
        if self.headers.get("If-None-Match") == etag:
            return 304, "", headers
        if self.command == "HEAD":
            return 200, "", headers | {"Content-Length": str(len(data))}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, data, headers
        first, last = wanted.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        return 206, data[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}

    def list(self, query: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        after = base64.b64decode(query.get("continuation-token", "")).decode()
        keys = sorted(k for k in self.state.objects if k.startswith(query.get("prefix", "")) and k > after)
        page = keys[:PAGE]
        more = len(keys) > PAGE
        last = base64.b64encode(page[-1].encode()).decode() if more else ""
        token = f"<NextContinuationToken>{last}</NextContinuationToken>"
        rows = "".join(
            f"<Contents><Key>{k}</Key><Size>{len(self.state.objects[k][0])}</Size>"
            f"<ETag>{self.state.objects[k][1]}</ETag></Contents>"
            for k in page
        )
        inner = f"<Name>b</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token if more else ''}{rows}"
        return 200, _xml("ListBucketResult", inner), {}

    def delete_many(self, body: str) -> tuple[int, str, dict[str, str]]:
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        if len(keys) > PAGE:
            return 400, ERROR.format("MalformedXML"), {}
        for key in keys:
            self.state.objects.pop(key, None)
        return 200, _xml("DeleteResult", ""), {}


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, inner: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{inner}</{name}>'


@contextmanager
def scripted_s3() -> Iterator[ScriptedS3]:
    """A server on 127.0.0.1 until the block ends."""
    state = ScriptedS3()
    handler = type("Handler", (_Handler,), {"state": state})
    with http_server(handler) as state.port:
        yield state
