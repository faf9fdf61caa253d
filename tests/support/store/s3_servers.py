"""Real S3 servers in processes of their own, and the proxy in front of them, for tests.

    with moto_server() as s3, store_proxy(s3, delay_ms=20) as proxy:
        bucket_url = proxy.bucket_url("archive", prefix="cluster-a")     # the bucket exists
        environment = s3.environment()                                   # credentials for a broker's process
        proxy.faults(Fault("lost", method="PUT", match="manifest.json", times=1))
        ranged = [r for r in proxy.requests() if r.method == "GET" and r.range]

moto checks neither secrets nor checksums and is exact below 5 MiB only: keep segments ≤ 4 MiB. versitygw is the real
one (`tests/support/store/get_versitygw.sh` installs it outside the repository); tests that need it are marked `peer`
and skip where `find_versitygw` is None. Everything binds 127.0.0.1 and ends with the process that started it.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.processes.ports import free_port
from tests.support.repository import ROOT
from tests.support.store.s3_proxy import Rule

ACCESS_KEY = "thermocline-test"
SECRET_KEY = "thermocline-secret"
START_S = 30.0
_MOTO = """
import io, logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
import threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as App
from moto.server import ThreadedMotoServer
conditional, answer = threading.Lock(), App.__call__
def one_at_a_time(self, environ, start_response):
    # moto looks at the condition, then writes: two writers of a loaded machine may both win.
    if environ["REQUEST_METHOD"] == "PUT" and environ.keys() & {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}:
        # Whoever is stopped (SIGSTOP) in mid-request must not keep the others waiting.
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        with conditional:
            return answer(self, environ, start_response)
    return answer(self, environ, start_response)
App.__call__ = one_at_a_time
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server (or the proxy before one)."""

    endpoint: str

    def environment(self) -> dict[str, str]:
        """What a process needs to talk to it: credentials by the usual chain, and no metadata service."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def bucket_url(self, bucket: str, prefix: str = "") -> str:
        """The URL of a bucket, which is created if it does not exist."""
        client = self.client()
        if bucket not in [found["Name"] for found in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=bucket)
        client.close()
        return f"s3://{bucket}{'/' + prefix if prefix else ''}?endpoint={self.endpoint}&region=us-east-1"

    def client(self):  # type: ignore[no-untyped-def]
        """A plain boto3 client, for looking at (or damaging) the bucket behind the project's back."""
        import boto3
        from botocore.client import Config

        return boto3.session.Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1").client(
            "s3", endpoint_url=self.endpoint, config=Config(s3={"addressing_style": "path"})
        )


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """moto in its own process."""
    with _child([sys.executable, "-c", _MOTO], "moto") as port:
        yield S3Server(f"http://127.0.0.1:{port}")


def find_versitygw() -> str | None:
    """The versitygw program: `$VERSITYGW`, the path, or where get_versitygw.sh put it."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    places = (os.environ.get("VERSITYGW"), shutil.which("versitygw"), f"{cache}/thermocline-test/bin/versitygw")
    return next((place for place in places if place and Path(place).is_file()), None)


@contextmanager
def versitygw_server(directory: str | None = None, users: str | None = None) -> Iterator[S3Server]:
    """versitygw over a directory of the local file system (a temporary one by default). `users`: a directory where it
    keeps some beside its first (`versitygw_user`)."""
    program = find_versitygw()
    assert program is not None, "versitygw is missing; run tests/support/store/get_versitygw.sh"
    with tempfile.TemporaryDirectory() as temporary:
        port = free_port()
        address = f"127.0.0.1:{port}"
        options = ["--port", address, "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--keep-alive", "--quiet"]
        options += [] if users is None else ["--iam-dir", users]
        process = subprocess.Popen(
            [program, *options, "posix", directory or temporary], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for_port(port, process)
            yield S3Server(f"http://{address}")
        finally:
            _end(process)


def versitygw_reader(server: S3Server, bucket: str) -> dict[str, str]:
    """The environment of a new user who may read a bucket and list it, and nothing else."""
    program, name, secret = find_versitygw(), "reader", "reader-secret"
    assert program is not None
    command = [program, "admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", server.endpoint]
    command += ["create-user", "--access", name, "--secret", secret, "--role", "user"]
    subprocess.run(command, check=True, capture_output=True)
    allowed = {"Effect": "Allow", "Principal": name, "Action": ["s3:GetObject", "s3:ListBucket"]}
    on = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    policy = {"Version": "2012-10-17", "Statement": [{**allowed, "Resource": on}]}
    client = server.client()
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    client.close()
    return server.environment() | {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": secret}


def find_localstack() -> bool:
    """Whether localstack/host-mode.sh was run once on this machine: it installs what it needs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return any(Path(f"{cache}/thermocline-localstack").glob("*/complete"))


@contextmanager
def localstack_server() -> Iterator[S3Server]:
    """LocalStack's S3 as localstack/host-mode.sh starts it; it keeps nothing."""
    assert find_localstack(), "LocalStack is missing; run localstack/host-mode.sh once"
    port = free_port()
    script = str(ROOT / "localstack" / "host-mode.sh")
    process = subprocess.Popen(["sh", script, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if line.startswith("ready: ")), None)
        assert line is not None, f"LocalStack ended with {process.wait(5)}"
        Thread(target=process.stderr.read, daemon=True).start()  # it writes on
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        _end(process)


Fault = Rule  # as those who give it to the proxy know it


@dataclass(frozen=True)
class ProxyCounts:
    """Since the proxy started: requests by operation; faults that took effect by (operation, fault's name)."""

    requests: Counter[str]
    hits: Counter[tuple[str, str]]


@dataclass(frozen=True)
class LoggedRequest:
    """One request as the proxy saw it. `range` is the header, `sent` and `received` are the client's body bytes.

    `condition` is '', 'absent' (If-None-Match) or the ETag of If-Match; `amz` holds the x-amz-… headers. `status` is
    what the server or the proxy answered (a `lost` client never saw it), 0 where nothing was. `ms` is the time until
    the last piece of the answer left. Method LATE is a late write that reached the server.
    """

    method: str
    operation: str
    bucket: str
    key: str
    query: str
    range: str
    condition: str
    status: int
    sent: int
    received: int
    fault: str
    ms: float
    amz: dict[str, str]


class StoreProxy(S3Server):
    """A server behind the proxy: use its endpoint instead of the server's."""

    def __init__(self, endpoint: str, log_path: str) -> None:
        super().__init__(endpoint)
        object.__setattr__(self, "_log_path", log_path)

    def delay(self, ms: float) -> None:
        """Wait so long before the first byte of each answer."""
        self._control("POST", "delay", {"ms": ms})

    def faults(self, *faults: Fault) -> None:
        """Replace all rules; none heals."""
        self._control("POST", "faults", [asdict(fault) for fault in faults])

    def hits(self) -> list[int]:
        """How often each of the current rules was applied."""
        return [rule["hits"] for rule in self._control("GET", "faults", None)]

    def seed(self, seed: int) -> None:
        """Begin the draws of `rate` anew."""
        self._control("POST", "seed", seed)

    def counts(self) -> ProxyCounts:
        """What was asked and what was struck, so far."""
        found = self._control("GET", "counts", None)
        hits = Counter({tuple(name.split(" ", 1)): count for name, count in found["hits"].items()})
        return ProxyCounts(Counter(found["requests"]), hits)  # type: ignore[arg-type]

    def requests(self) -> list[LoggedRequest]:
        """Every request since the start or the last `forget`, as they were answered: whoever has an answer finds it."""
        found = []
        with open(self._log_path, encoding="utf-8") as log:  # type: ignore[attr-defined]
            for line in log:
                entry = json.loads(line)
                path, _, query = entry.pop("path").partition("?")
                bucket, _, key = unquote(path).lstrip("/").partition("/")
                missing = {
                    "operation": "",
                    "range": "",
                    "condition": "",
                    "sent": 0,
                    "received": 0,
                    "fault": "",
                    "ms": 0.0,
                    "amz": {},
                }
                found.append(LoggedRequest(bucket=bucket, key=key, query=query, **(missing | entry)))
        return found

    def forget(self) -> None:
        """Empty the log."""
        os.truncate(self._log_path, 0)  # type: ignore[attr-defined]

    def _control(self, method: str, what: str, content: object) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=10)
        try:
            connection.request(method, f"/__proxy__/{what}", json.dumps(content))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@contextmanager
def store_proxy(server: S3Server, delay_ms: float = 0) -> Iterator[StoreProxy]:
    """The proxy in its own process, in front of `server`."""
    program = str(Path(__file__).with_name("s3_proxy.py"))
    with tempfile.TemporaryDirectory() as directory:
        log_path = f"{directory}/requests.jsonl"
        Path(log_path).touch()
        with _child([sys.executable, program, urlsplit(server.endpoint).netloc, log_path], "proxy") as port:
            proxy = StoreProxy(f"http://127.0.0.1:{port}", log_path)
            proxy.delay(delay_ms)
            yield proxy


@contextmanager
def _child(command: list[str], name: str) -> Iterator[int]:
    """A program that prints its port and ends when its standard input closes (so also when we die)."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.strip().isdigit(), f"{name} did not start: {line!r}"
        _wait_for_port(int(line), process)
        yield int(line)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _wait_for_port(port: int, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, f"the server on port {port} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"nothing listens on port {port}"
            time.sleep(0.02)
