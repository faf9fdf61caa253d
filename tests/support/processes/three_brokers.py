"""Brokers of one site as processes of their own, by node id, and the cluster as its root in the bucket says it is.

Owns starting and ending them. Always true: a broker keeps its ports over its lives, so `everywhere` stays right; the
image is read from `cluster.json` itself, no broker is asked. With `links` what brokers say to each other goes through
a proxy each way. `is_secured`: by `serve --secure`; broker 1 makes the cluster and the others join by its file. Must
not know what is tested.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from botocore.exceptions import ClientError
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.cluster_content import CLUSTER_FORMAT, ClusterContent, ControllerAt, controller_of, image_of
from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, Row
from coldstore.keys import cluster_key
from coldstore.object_store import Got
from coldstore.roots.root import RootCodec
from tests.support.clients.access import Access, admin_login
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.link_proxy import Links
from tests.support.processes.ports import quiet_port
from tests.support.processes.site import Site
from tests.support.waiting import wait_until

SLACK_S = 30.0  # a busy machine, where nothing about time is asked
NODES = (1, 2, 3)


@dataclass
class Three:
    """`buckets`: the bucket's URL as each broker is told it, where they go different ways."""

    site: Site
    stack: contextlib.ExitStack
    links: Links | None = None
    buckets: Mapping[int, str] = field(default_factory=dict)
    scheme: str = ""  # of the listener for clients: `SSL://`
    client: Mapping[str, str] = field(default_factory=dict)  # configs of clients, beside the address
    is_secured: bool = False
    brokers: dict[int, BrokerProcess] = field(default_factory=dict)
    _ports: dict[int, int] = field(default_factory=dict)
    _listeners: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node_id in NODES:
            self._ports[node_id] = port = quiet_port()
            if self.links is not None:
                behind = quiet_port()
                told = self.links.door(str(node_id), behind)
                self._listeners[node_id] = _listeners(port, behind, told, is_secured=self.is_secured)

    @property
    def everywhere(self) -> str:
        """Of all three, whether they run or not."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def access(self) -> Access:
        """Of the first user, where there are users."""
        first = self.site.data_dir(str(NODES[0]))
        return Access(self.everywhere, admin_login(first) if self.is_secured else None)

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────
    def start(self, node_id: int, *flags: str, wait_ready: bool = True) -> BrokerProcess:
        """Its next life."""
        of_links = self._listeners.get(node_id, [])
        if self.links is not None:
            self.links.set_open(str(node_id), True)
        broker = self.site.broker(
            str(node_id),
            *("--node-id", str(node_id), *of_links, *self._secured(node_id), *flags),
            wait_ready=False,
            listen=None if of_links else f"{self.scheme}127.0.0.1:{self._ports[node_id]}",
            bucket_url=self.buckets.get(node_id),
        )
        found = self.brokers[node_id] = self.stack.enter_context(broker)
        if self.links is not None:
            self.links.owners[str(node_id)] = found.pid
        if wait_ready:
            found.await_ready()
        return found

    def _secured(self, node_id: int) -> tuple[str, ...]:
        if not self.is_secured:
            return ()
        first = NODES[0]
        join = () if node_id == first else ("--join", str(self.site.data_dir(str(first)) / "join.properties"))
        return ("--secure", *join)

    @contextlib.contextmanager
    def beside(self, name: str, node_id: int) -> Iterator[BrokerProcess]:
        """One process more, which says that it is `node_id`, on directory `name` and ports of its own."""
        of_links = _listeners(0, 0, 0) if self.links is not None else []
        listen = None if of_links else "127.0.0.1:0"
        words = ("--node-id", str(node_id), *of_links)
        with self.site.broker(name, *words, wait_ready=False, listen=listen) as broker:
            if self.links is not None:
                self.links.owners[name] = broker.pid
            yield broker

    def kill(self, node_id: int) -> None:
        """kill -9: its ports refuse from now on."""
        self.brokers[node_id].kill()
        self.gone(node_id)

    def stop(self, node_id: int) -> int:
        """SIGTERM, and its exit code."""
        code = self.brokers[node_id].stop()
        self.gone(node_id)
        return code

    def gone(self, node_id: int) -> None:
        """Its process ended."""
        if self.links is not None:
            self.links.owners.pop(str(node_id), None)
            self.links.set_open(str(node_id), False)

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        os.kill(self.brokers[node_id].pid, signal.SIGSTOP)

    def go_on(self, node_id: int) -> None:
        """SIGCONT."""
        os.kill(self.brokers[node_id].pid, signal.SIGCONT)

    def alive(self) -> set[int]:
        return {node_id for node_id, broker in self.brokers.items() if broker.process.poll() is None}

    def logs(self, length: int = 4000) -> str:
        return "\n".join(f"--- {n}\n{broker.log()[-length:]}" for n, broker in self.brokers.items())

    # ── the cluster ──────────────────────────────────────────────────────────────────────────────────────────────
    def root(self) -> tuple[ClusterImage, ControllerAt]:
        """As it stands in the bucket."""
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError, ClientError):  # its page was folded away meanwhile
                return self._root()
        return self._root()

    def _root(self) -> tuple[ClusterImage, ControllerAt]:
        data = self.site.bucket.read(cluster_key())
        root = RootCodec(CLUSTER_FORMAT).decode(cluster_key(), Got(data, "", len(data)))
        page = root.content.page
        controller = controller_of(root.content, root.epoch)
        assert isinstance(root.content, ClusterContent) and controller is not None
        return image_of(root.content, None if page is None else self.site.bucket.read(page.key)), controller

    def image(self) -> ClusterImage:
        return self.root()[0]

    def controller(self) -> int:
        return self.root()[1].node_id

    def active(self) -> dict[int, int]:
        """Broker epochs of the sessions there are."""
        return {node.node_id: node.broker_epoch for node in self.image().nodes.values() if node.active}

    def rows(self, topic: str) -> tuple[Row, ...]:
        found = self.image().topic_named(topic)
        assert found is not None
        return found.rows

    def is_whole(self) -> bool:
        """Each broker has a session, each partition a leader, each in-sync set all replicas."""
        image = self.image()
        rows = [row for topic in image.topics.values() for row in topic.rows]
        full = all(row.leader != NO_LEADER and set(row.in_sync) == set(row.replicas) for row in rows)
        return full and {node.node_id for node in image.nodes.values() if node.active} == set(NODES)

    def create(self, topic: str, partitions: int = 1, replicas: int = 3, **configs: object) -> None:
        """A topic with `configs`, dots written as underscores."""
        named = {name.replace("_", "."): str(value) for name, value in configs.items()}
        admin = AdminClient({**self.access.confluent(), "log_level": 0, **self.client})
        admin.create_topics([NewTopic(topic, partitions, replicas, config=named)])[topic].result(30)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────
    def wait(self, happened: Callable[[], bool], what: str, timeout_s: float = SLACK_S) -> None:
        """As `wait_until`, with what the brokers said in the failure."""
        try:
            wait_until(happened, what, timeout_s)
        except AssertionError as never:
            rows = {topic.name: topic.rows for topic in self.image().topics.values()}
            raise AssertionError(f"{never}\n{rows}\n{self.logs()}") from None

    def wait_active(self, *node_ids: int, timeout_s: float = SLACK_S) -> None:
        self.wait(lambda: self.active().keys() == set(node_ids), f"sessions of {node_ids}", timeout_s)


def _listeners(port: int, behind: int, told: int, *, is_secured: bool = False) -> list[str]:
    """Flags: `port` for clients, `behind` for brokers, who are told of `told` instead; 0 picks one."""
    of_clients, of_links = ("SASL_SSL", "SSL") if is_secured else ("PLAINTEXT", "PLAINTEXT")
    clients = f"{of_clients}://127.0.0.1:{port}"
    settings = [
        f"listeners={clients},LINKS://127.0.0.1:{behind}",
        *([f"advertised.listeners={clients},LINKS://127.0.0.1:{told}"] if told else []),
        f"listener.security.protocol.map={of_clients}:{of_clients},LINKS:{of_links}",
        "inter.broker.listener.name=LINKS",
    ]
    return [word for setting in settings for word in ("--set", setting)]


@contextlib.contextmanager
def three(
    site: Site,
    links: Links | None = None,
    buckets: Mapping[int, str] | None = None,
    *,
    scheme: str = "",
    client: Mapping[str, str] | None = None,
    is_secured: bool = False,
) -> Iterator[Three]:
    """All three; broker 1 comes first, so it decides. Killed at the end."""
    with contextlib.ExitStack() as stack:
        cluster = Three(site, stack, links, buckets or {}, scheme, client or {}, is_secured)
        cluster.start(1)
        for later in [cluster.start(node_id, wait_ready=False) for node_id in (2, 3)]:
            later.await_ready()
        yield cluster
