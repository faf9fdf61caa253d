"""Connections of one address (KIP-612): above its quota they are closed after a while and do not count."""

from __future__ import annotations

import asyncio

import pytest

from broker.config.network.connections import per_ip_overrides
from broker.config.values import InvalidConfig
from broker.metadata.image import ClusterImage
from broker.metadata.records import ClientQuotas
from broker.net.admission import Admission, ConnectionLimiter
from broker.net.dispatch import CloseReason
from broker.net.limits import NetLimits
from broker.quotas.connection_rates import ConnectionRates
from broker.quotas.rates import Windows
from broker.startup.address_quotas import AddressQuotas
from seams.loop.tasks import Tasks
from tests.support.net.net_house import House, in_house, settled
from tests.support.net.scripted_net import ScriptedNet, frame
from tests.support.scenario import by


def test_an_address_has_its_own_quota_or_the_default() -> None:
    rates = ConnectionRates(Windows())
    rates.set(1.0, {"10.0.0.1": 2.0})
    for address, free in (("10.0.0.1", 20), ("10.0.0.2", 10), ("", 100)):
        assert [rates.arrived(address, 5.0) for _ in range(free)] == [0.0] * free
    assert rates.arrived("10.0.0.1", 5.0) == 0.5
    assert rates.arrived("10.0.0.2", 5.0) == 1.0
    rates.set(None, {"10.0.0.1": 4.0})
    assert rates.arrived("10.0.0.1", 5.0) == rates.arrived("10.0.0.2", 5.0) == 0.0


def test_a_delay_is_a_window_at_most_and_refused_connections_do_not_count() -> None:
    rates = ConnectionRates(Windows())
    rates.set(0.1, {})
    assert rates.arrived("a", 0.0) == 0.0
    assert {rates.arrived("a", 0.0) for _ in range(50)} == {1.0}
    assert rates.arrived("a", 11.0) == 0.0
    rates.set(1.0, {})
    admitted = [rates.arrived("b", at / 4) == 0.0 for at in range(400)]
    assert sum(admitted) == pytest.approx(100, abs=12)  # 100 s at 4 a second


class OneOfTwo:
    """Every second connection is too fast."""

    def __init__(self) -> None:
        self.count = 0

    def arrived(self, address: str, now_s: float) -> float:
        self.count += 1
        return 0.0 if self.count % 2 else 1.0


@by(in_house, NetLimits(connections_waiting_max=2))
async def test_a_connection_above_the_rate_is_never_read_and_closed_later(house: House, /) -> None:
    house.server.limit_addresses(OneOfTwo())
    peers = [house.net.arrive() for _ in range(8)]
    await settled()
    for peer in peers[::2]:
        peer.give(frame(b"a"))
        assert bytes(peer.wire) == frame(b"a")
    assert [peer.closed for peer in peers[1::2]] == [False, False, True, True]
    assert not any(peer.reading for peer in peers[1:4:2])
    assert house.server.connections_waiting == 0
    for connection, timer in list(house.server._delayed.items()):
        timer.cancel()
        connection.close_delayed()
    await settled()
    assert all(peer.closed for peer in peers[1::2])
    assert house.closes == {CloseReason.TOO_FAST: 2, CloseReason.TOO_MANY: 2}
    assert house.server.counters.connections_delayed == 2


@by(in_house)
async def test_a_stop_does_not_wait_for_delayed_connections(house: House, /) -> None:
    house.server.limit_addresses(OneOfTwo())
    peers = [house.net.arrive() for _ in range(2)]
    async with asyncio.timeout(0.9):
        await house.server.stop()
    assert all(peer.closed for peer in peers)
    assert not house.server._delayed


def test_an_address_may_have_a_number_of_connections_of_its_own() -> None:
    limits = NetLimits(connections_per_ip_max=1, connections_per_ip_overrides={"10.0.0.1": 2, "10.0.0.3": 0})
    limiter: ConnectionLimiter[int] = ConnectionLimiter(limits, 0.0)
    admitted = {
        address: [limiter.arrived(10 * at + n, address, 0.0) is Admission.ADMIT for n in range(3)]
        for at, address in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    }
    assert [sum(found) for found in admitted.values()] == [2, 1, 0]


def test_overrides_are_addresses_with_counts() -> None:
    assert per_ip_overrides(" 127.0.0.1:200, [::1]:3,::2:4,") == {"127.0.0.1": 200, "::1": 3, "::2": 4}
    assert per_ip_overrides("") == per_ip_overrides(None) == {}
    for wrong in ("localhost:3", "127.0.0.1", "127.0.0.1:-1", "127.0.0.1:x", "127.0.0.1:99999999999"):
        with pytest.raises(InvalidConfig, match=r"per\.ip\.overrides"):
            per_ip_overrides(wrong)


class Names(ScriptedNet):
    async def resolve(self, host: str, timeout_s: float) -> list[str]:
        if host == "unknown":
            raise OSError("no such name")
        return ["10.0.0.9", "10.0.0.1"]


async def test_host_names_are_resolved_when_quotas_change() -> None:
    """An address that is named itself keeps its quota; a name that nobody knows limits nobody."""
    rates, tasks = ConnectionRates(Windows()), Tasks()
    quotas = AddressQuotas(rates, Names(), tasks)
    key = "connection_creation_rate"
    image = ClusterImage().with_records(
        [
            ClientQuotas((("ip", "10.0.0.1"),), {key: 1.0}),
            ClientQuotas((("ip", "host"),), {key: 2.0}),
            ClientQuotas((("ip", "unknown"),), {key: 3.0}),
            ClientQuotas((("user", "u"),), {"producer_byte_rate": 3.0}),
        ]
    )
    quotas.apply_image(image)
    await settled()
    assert (rates._default, rates._by_address) == (None, {"10.0.0.1": 1.0, "10.0.0.9": 2.0})
    quotas.apply_image(image.with_records([ClientQuotas((("ip", None),), {key: 7.0})]))
    quotas.apply_image(ClusterImage())
    await settled()
    assert (rates._default, rates._by_address) == (None, {})
    await tasks.close()
