"""What clients and restarts may put into a root stays small enough for the root."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from broker.config.api.alterations import CONFIGS_BYTES_MAX, Alteration, AlterOperation
from broker.config.resolve import resolve
from broker.config.topic.changes import altered_configs
from broker.config.values import InvalidConfig
from broker.controller.decisions import decision
from broker.error_codes import ErrorCode
from broker.metadata.cluster_root import COMMIT_BYTES_MAX
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from coldstore.manifest.manifest_store import CLAIM_BYTES
from logformat.values import TOPIC_NAME_CHARS_MAX
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.cluster_kit import claim, cluster_root
from tests.support.store.memory_store import MemoryStore

_TOPIC = 2
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def replicas(size: int) -> str:
    """A list of about `size` bytes that the rules accept."""
    return ",".join(f"{at}:1" for at in range(10_000, 10_000 + size // 8))


async def create(life: Life, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> tuple[int, str]:
    wanted = CreateTopicsRequestTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        configs=[CreateTopicsRequestConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=5000, validate_only=validate_only)
    (answer,) = (await life.call(ApiKey.CREATE_TOPICS, request)).topics
    return int(answer.error_code), answer.error_message or ""


async def alter(life: Life, name: str, configs: Mapping[str, str | None], operation: AlterOperation) -> tuple[int, str]:
    resource = IncrementalAlterConfigsRequestResource(
        resource_type=_TOPIC,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
            for key, value in configs.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = (await life.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)).responses
    return int(answer.error_code), answer.error_message or ""


TOO_MUCH = {
    "one long value": {THROTTLED[0]: replicas(32_000)},  # about the longest string of a request
    "many together": {name: replicas(CONFIGS_BYTES_MAX * 2 // 3) for name in THROTTLED},
    "a short list, long as stored": {"cleanup.policy": ",".join(["delete"] * 700)},
    "a long name": {"x" * 30_000: "1"},
}


@pytest.mark.parametrize("configs", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_configs_that_would_outgrow_a_root_are_refused(configs: dict[str, str]) -> None:
    """58 KB were accepted, and the partition's root could then neither be made nor claimed."""
    life = await Place().start()
    for validate_only in (True, False):
        code, message = await create(life, "log", configs, validate_only=validate_only)
        assert code == ErrorCode.INVALID_CONFIG
        assert f"at most {CONFIGS_BYTES_MAX}" in message and len(message) < 500
    assert (await create(life, "log", {}))[0] == ErrorCode.NONE
    code, message = await alter(life, "log", configs, AlterOperation.SET)
    assert code == ErrorCode.INVALID_CONFIG
    assert f"at most {CONFIGS_BYTES_MAX}" in message and len(message) < 500
    assert life.context.metadata.topic("log").configs == {"remote.storage.enable": "true"}
    await life.stop()


async def test_configs_do_not_outgrow_a_root_bit_by_bit() -> None:
    """APPEND adds to what is kept already; what fits is kept, and the topic serves over a restart."""
    place = Place()
    life = await place.start()
    assert (await create(life, "log", {THROTTLED[0]: "0:1"}))[0] == ErrorCode.NONE
    codes = []
    for at in range(40):
        more = ",".join(f"{pair}:1" for pair in range(10_000 + at * 50, 10_050 + at * 50))
        codes.append((await alter(life, "log", {THROTTLED[0]: more}, AlterOperation.APPEND))[0])
    assert set(codes) == {ErrorCode.NONE, ErrorCode.INVALID_CONFIG}
    kept = life.context.metadata.topic("log").configs[THROTTLED[0]]
    assert CONFIGS_BYTES_MAX * 3 // 4 < len(kept) <= CONFIGS_BYTES_MAX
    assert (await alter(life, "log", {THROTTLED[0]: kept}, AlterOperation.SUBTRACT))[0] == ErrorCode.NONE
    await life.stop()
    life = await place.start()
    assert (await life.produce("log", b"on")).error_code == ErrorCode.NONE
    await life.stop()


def test_a_claim_has_room_for_the_largest_configs() -> None:
    """The arithmetic behind the limits: a claim may replace nothing by all of it in a root that is full otherwise. What
    does not fit `cluster.json` goes to a page."""
    largest_topic = CONFIGS_BYTES_MAX + TOPIC_NAME_CHARS_MAX + 256
    assert largest_topic < CLAIM_BYTES
    assert largest_topic < COMMIT_BYTES_MAX


async def test_metadata_that_is_full_takes_no_more_topics_and_gives_some_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many topics with many configs: refused by name before a page outgrows what a start can read."""
    life = await Place().start()
    monkeypatch.setattr(decision, "IMAGE_BYTES_MAX", 2000)
    codes = []
    while ErrorCode.POLICY_VIOLATION not in codes:
        codes.append((await create(life, f"log-{len(codes)}", {THROTTLED[0]: "0:1"}))[0])
        assert len(codes) < 100
    assert len(codes) > 3
    code, message = await alter(life, "log-0", {"retention.ms": "1000"}, AlterOperation.SET)
    assert code == ErrorCode.POLICY_VIOLATION and "delete topics" in message
    assert (await alter(life, "log-0", {THROTTLED[0]: None}, AlterOperation.DELETE))[0] == ErrorCode.NONE
    await life.context.controller.delete_topic("log-1")
    await life.stop()


def test_taking_items_out_of_a_long_list_is_not_quadratic() -> None:
    """A frame of 1 MiB names half a million items; each was looked for in all of the others."""
    config = {THROTTLED[0]: replicas(CONFIGS_BYTES_MAX)}
    given = Alteration(THROTTLED[0], AlterOperation.SUBTRACT, replicas(1 << 20))
    began_s = time.thread_time()
    with pytest.raises(InvalidConfig, match="at most"):
        altered_configs(resolve({"log.dirs": "/data"}, [], {}, None), config, [given])
    assert time.thread_time() - began_s < 0.05


async def test_a_broker_that_is_only_ever_restarted_starts_again() -> None:
    """Every start is a record in cluster.json; nothing folded them unless a topic or a producer id came: after some
    280 starts the root was full, and the broker never came up again."""
    store = MemoryStore()
    for at in range(400):
        cluster = cluster_root(store, at)
        await cluster.load()
        image = (await claim(cluster, f"{at:032x}")).image
        assert image.nodes[1].broker_epoch == at + 1
    found = await cluster_root(store).load()
    assert found is not None and found.image.nodes[1].broker_epoch == 400
