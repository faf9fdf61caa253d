"""Sensors are bounded; quotas are measured only while they are set; mutations are strict or permissive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.records import Acl, ClientQuotas
from broker.net.dispatch import Peer
from broker.quotas.client_quotas import QuotaKind, QuotaManagers
from broker.quotas.rates import Windows
from broker.quotas.sensors import IDLE_MS_MAX, Sensors
from broker.security.audit import Audit
from broker.security.authorizer.standard import Authorizer
from broker.security.client_access import ClientAccess

PEER = Peer(1, "127.0.0.1:1", "PLAINTEXT", principal="User:u")


class Managers(QuotaManagers):
    """With a clock of their own, and the quotas of user `u`."""

    def __init__(self, **quotas: float) -> None:
        self.now_s = 100.0
        super().__init__(Windows(), Windows(), lambda: self.now_s, lambda _: False)
        self.image = ClusterImage()
        self.change(**quotas)

    def change(self, **quotas: float) -> None:
        self.image = self.image.with_records([ClientQuotas((("user", "u"),), quotas)])
        self.apply_image(self.image)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0, 1, IDLE_MS_MAX // 7, IDLE_MS_MAX])), max_size=80))
def test_sensors_are_bounded_and_forgotten_when_idle(uses: list[tuple[int, int]]) -> None:
    """Never more than the bound, and never one that was idle for an hour; the same one as long as it is known."""
    sensors: Sensors[list[int]] = Sensors(count_max=8)
    used: dict[str, tuple[int, list[int]]] = {}
    now_ms = 0
    for client, wait_ms in uses:
        now_ms += wait_ms
        key = str(client)
        sensor = sensors.get(("", key), now_ms, list)
        was = used.pop(key, None)
        recent = [other for _, other in list(used.values())[-7:]]
        if was is not None and now_ms - was[0] < IDLE_MS_MAX and any(other is was[1] for other in [*recent, sensor]):
            assert sensor is was[1]
        if was is not None and now_ms - was[0] >= IDLE_MS_MAX:
            assert sensor is not was[1]
        used[key] = now_ms, sensor
        assert len(sensors) <= 8


def test_the_client_that_was_quiet_for_longest_is_forgotten() -> None:
    sensors: Sensors[object] = Sensors(count_max=2)
    first, second = (sensors.get(("", name), 1, object) for name in "ab")
    assert sensors.get(("", "a"), 2, object) is first
    sensors.get(("", "c"), 3, object)
    assert sensors.get(("", "a"), 4, object) is first
    assert sensors.get(("", "b"), 5, object) is not second


def test_nothing_is_measured_without_quotas() -> None:
    managers = Managers()
    assert not managers.is_set
    managers.change(producer_byte_rate=1000.0)
    assert managers.is_set and managers.produce.is_set and not managers.fetch.is_set
    managers.change()
    assert not managers.is_set


def test_an_image_with_the_same_quotas_changes_nothing() -> None:
    """Sensors keep what clients took; other quotas hold for what was taken before."""
    managers = Managers(producer_byte_rate=1000.0)
    managers.produce.record("u", "c", 20_000, managers.now_ms())
    managers.apply_image(managers.image)
    assert managers.produce.record("u", "c", 0, managers.now_ms()) == 10_000
    managers.change(producer_byte_rate=2000.0)
    assert managers.produce.record("u", "c", 0, managers.now_ms()) == 0


def test_request_time_is_throttled_for_a_window_at_most() -> None:
    managers = Managers(request_percentage=1.0, producer_byte_rate=1.0)
    assert managers.request.record("u", "c", 5000.0, managers.now_ms()) == 1000
    assert managers.produce.record("u", "c", 5000.0, managers.now_ms()) == 4_990_000


def test_a_fetch_above_its_quota_is_not_counted_and_the_first_one_is_served() -> None:
    managers = Managers(consumer_byte_rate=1000.0)
    assert managers.fetch.most_at_once("u", "c") == 10_000
    assert managers.fetch.most_at_once("other", "c") is None
    assert managers.fetch.reserve("u", "c", 50_000, managers.now_ms()) == (40_000, True)
    assert managers.fetch.reserve("u", "c", 1000, managers.now_ms()) == (41_000, False)
    assert managers.fetch.reserve("u", "c", 0, managers.now_ms()) == (40_000, False)
    managers.now_s += 41.0
    assert managers.fetch.reserve("u", "c", 10_000, managers.now_ms()) == (0, True)


def test_a_fetch_that_is_not_wanted_is_not_counted() -> None:
    managers = Managers(consumer_byte_rate=1000.0)
    assert managers.fetch.reserve("u", "c", 9_000, managers.now_ms(), is_wanted=False) == (0, False)
    assert managers.fetch.reserve("u", "c", 9_000, managers.now_ms()) == (0, True)


def test_strict_mutations_are_refused_when_the_tokens_are_used_up() -> None:
    """KIP-599: a change that begins while tokens are left is made whole, however large."""
    managers = Managers(controller_mutation_rate=1.0)
    mutations = managers.mutations(PEER, "c", is_strict=True)
    mutations.charge()(20)
    assert mutations.throttle_ms == 0
    with pytest.raises(ApiError) as refused:
        mutations.charge()(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert mutations.throttle_ms == 9000
    managers.now_s += 4.0
    assert mutations.throttle_ms == 5000
    managers.now_s += 5.0
    managers.mutations(PEER, "c", is_strict=True).charge()(1)


def test_permissive_mutations_are_made_and_throttled() -> None:
    managers = Managers(controller_mutation_rate=1.0)
    mutations = managers.mutations(PEER, "c", is_strict=False)
    for _ in range(3):
        mutations.charge()(10)
    assert mutations.throttle_ms == 19_000


def test_a_change_that_is_decided_again_counts_once() -> None:
    managers = Managers(controller_mutation_rate=1.0)
    charge = managers.mutations(PEER, "c", is_strict=True).charge()
    charge(11)
    charge(11)
    managers.mutations(PEER, "c", is_strict=True).charge()(1)


def test_who_has_no_mutation_quota_is_free() -> None:
    managers = Managers(producer_byte_rate=1.0)
    mutations = managers.mutations(PEER, "c", is_strict=True)
    for _ in range(100):
        mutations.charge()(1000)
    assert mutations.throttle_ms == 0
    assert managers.throttled[QuotaKind.CONTROLLER_MUTATION] == 0


def test_brokers_and_super_users_are_free() -> None:
    """Found by a penetration test: every client that reached the brokers' listener was free of quotas."""
    authorizer = Authorizer(frozenset({"User:root"}))
    authorizer.follow((Acl(4, "kafka-cluster", 3, "User:broker-1", "*", 9, 3),))
    clients = ClientAccess(authorizer, Audit(lambda: 0.0), "BROKERS")
    found = {
        (name, listener): clients.is_free_of_quotas(Peer(1, "10.0.0.1:1", listener, principal=f"User:{name}"))
        for name in ("root", "broker-1", "alice", "ANONYMOUS")
        for listener in ("BROKERS", "IN")
    }
    assert [key for key, is_free in found.items() if is_free] == [
        ("root", "BROKERS"), ("root", "IN"), ("broker-1", "BROKERS"),
    ]  # fmt: skip
    without = ClientAccess(None, Audit(lambda: 0.0), "BROKERS")
    assert [without.is_free_of_quotas(Peer(1, "", listener)) for listener in ("BROKERS", "IN")] == [True, False]
