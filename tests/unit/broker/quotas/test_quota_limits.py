"""The most specific quota: against a table written by hand, and against a copy of Kafka's decision."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.metadata.records import ClientQuotas
from broker.quotas.limits import Limits, SensorKey

KEY = "producer_byte_rate"
LEVELS: list[tuple[tuple[str, str | None], ...]] = [
    (("client-id", "c"), ("user", "u")),
    (("client-id", None), ("user", "u")),
    (("user", "u"),),
    (("client-id", "c"), ("user", None)),
    (("client-id", None), ("user", None)),
    (("user", None),),
    (("client-id", "c"),),
    (("client-id", None),),
]
"""From the most specific to the least; the quota of each is its place in this list."""
MEASURED = [("u", "c"), ("u", "c"), ("u", ""), ("u", "c"), ("u", "c"), ("u", ""), ("", "c"), ("", "c")]


def limits(*places: int) -> Limits:
    return Limits([ClientQuotas(LEVELS[place], {KEY: float(place + 1)}) for place in places], KEY)


@pytest.mark.parametrize("places", [found for n in range(9) for found in itertools.combinations(range(8), n)])
def test_the_most_specific_level_counts(places: tuple[int, ...]) -> None:
    """All 256 sets of levels."""
    expected = (MEASURED[places[0]], float(places[0] + 1)) if places else None
    assert limits(*places).of("u", "c") == expected


@pytest.mark.parametrize(
    ("user", "client_id", "expected"),
    [
        ("u", "other", [1, 4, 7, 2, 5]),
        ("other", "c", [3, 4, 5, 6, 7]),
        ("other", "other", [4, 5, 7]),
    ],
)
def test_other_clients_match_defaults_and_parts(user: str, client_id: str, expected: list[int]) -> None:
    """Each level alone: whether it holds for the client."""
    assert [place for place in range(8) if limits(place).of(user, client_id)] == sorted(expected)


def kafkas(
    quotas: dict[tuple[str | None, str | None], float], user: str, client_id: str
) -> tuple[SensorKey, float] | None:
    """ClientQuotaManager.DefaultQuotaCallback of 4.3.1, with `<default>` for defaults and None for none."""
    default = "<default>"
    tags = "", client_id
    for entity, found in (
        ((user, client_id), (user, client_id)),
        ((user, default), (user, client_id)),
        ((user, None), (user, "")),
        ((default, client_id), (user, client_id)),
        ((default, default), (user, client_id)),
        ((default, None), (user, "")),
    ):
        if entity in quotas:
            tags = found
            break
    if tags[0] and tags[1]:
        places = [tags, (tags[0], default), (default, tags[1]), (default, default)]
    elif tags[0]:
        places = [(tags[0], None), (default, None)]
    elif tags[1]:
        places = [(None, tags[1]), (None, default)]
    else:
        places = []
    bound = next((quotas[place] for place in places if place in quotas), None)
    return None if bound is None else (tags, bound)


NAMES = st.sampled_from(["a", "b", "<default>", None])
CLIENTS = st.sampled_from(["a", "b", ""])


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.floats(1, 1000), max_size=12), CLIENTS, CLIENTS)
def test_a_limit_is_kafkas(quotas: dict[tuple[str | None, str | None], float], user: str, client_id: str) -> None:
    """Also of a client without an id."""
    quotas.pop((None, None), None)
    records = [
        ClientQuotas(
            tuple(
                (kind, None if name == "<default>" else name)
                for kind, name in (("client-id", client), ("user", owner))
                if name is not None
            ),
            {KEY: bound},
        )
        for (owner, client), bound in quotas.items()
    ]
    assert Limits(records, KEY).of(user, client_id) == kafkas(quotas, user, client_id)


def test_quotas_of_other_keys_and_of_addresses_do_not_count() -> None:
    others = [ClientQuotas((("user", "u"),), {"request_percentage": 1.0}), ClientQuotas((("ip", None),), {KEY: 1.0})]
    assert Limits(others[:1], KEY).of("u", "c") is None
    assert not Limits(others[:1], KEY)


def test_a_long_client_id_takes_no_memory_and_has_its_own_rate() -> None:
    """Found by a penetration test: what is measured was kept under the id itself, of up to 32 KB, 10 000 of them."""
    limits = Limits([ClientQuotas((("client-id", None),), {KEY: 5.0})], KEY)
    ids = [f"{number}".ljust(32_000, "x") for number in range(3)]
    found = [limits.of("u", client_id) for client_id in ids]
    assert all(one is not None and len(one[0][1]) < 100 and one[1] == 5.0 for one in found)
    assert len({one[0] for one in found if one is not None}) == 3
    assert limits.of("u", ids[0]) == found[0]
    assert not limits._found
