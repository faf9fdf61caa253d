"""A plain range server: ranged GETs from a directory, each first byte late; all else goes to the S3 server behind it.

`python bench/range_server.py DIRECTORY UPSTREAM_HOST:PORT DELAY_MS` prints its port on 127.0.0.1 and serves until its
standard input closes. DIRECTORY is the one that versitygw keeps its buckets in. One thread a connection; bodies of
ranges go by sendfile. Knows nothing of this project.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

DIRECTORY, UPSTREAM, DELAY_S = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000


class Handler(BaseHTTPRequestHandler):
    """One connection; `http.server` answers Expect: 100-continue, which no signature covers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.upstream = http.client.HTTPConnection(UPSTREAM, timeout=300)

    def do_GET(self) -> None:
        path = DIRECTORY + unquote(urlsplit(self.path).path)
        if "Range" in self.headers and os.path.isfile(path):
            self.send_range(path)
        else:
            self.forward()  # what is not there is said by the server behind

    def send_range(self, path: str) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = int(first) if first else size - int(last)
            end = min(size, int(last) + 1) if first and last else size
            time.sleep(DELAY_S)
            self.send_response(206)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("ETag", os.getxattr(path, "user.etag").decode())  # versitygw keeps it there
            self.end_headers()
            while start < end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":
                self.upstream.putheader(name, value)
        self.upstream.endheaders(body)
        answer = self.upstream.getresponse()
        data = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)

    do_HEAD = do_PUT = do_POST = do_DELETE = forward

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the peer's figure is of the same server."""


class Server(ThreadingHTTPServer):
    """Ends with its process; a client that leaves in mid-request is none of its errors."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def main() -> None:
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
