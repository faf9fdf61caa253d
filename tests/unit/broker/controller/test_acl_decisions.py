"""Decisions about ACLs: Kafka's validation, filters against a scan, and the record that comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.controller.decisions import acls
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.records import Acl, AclsChanged
from broker.security.authorizer.acl_filter import AclFilter

A = Acl(2, "a", 3, "User:x", "*", 3, 3)
B = Acl(2, "ab", 4, "User:y", "10.0.0.1", 4, 2)
C = Acl(4, "kafka-cluster", 3, "User:x", "*", 2, 3)
W = Acl(2, "*", 3, "User:x", "*", 8, 3)
IMAGE = ClusterImage(acls=(A, B, C, W))

some_acls = st.lists(
    st.builds(
        Acl,
        st.sampled_from((2, 3)),
        st.sampled_from(("*", "a", "ab", "b")),
        st.sampled_from((3, 4)),
        st.sampled_from(("User:x", "User:y")),
        st.sampled_from(("*", "10.0.0.1")),
        st.sampled_from((3, 4)),
        st.sampled_from((2, 3)),
    ),
    unique=True,
    max_size=10,
).map(tuple)
filters = st.builds(
    AclFilter,
    st.sampled_from((1, 2)),
    st.sampled_from((None, "a", "abc", "*")),
    st.sampled_from((1, 2, 3, 4)),
    st.sampled_from((None, "User:x")),
    st.sampled_from((None, "*")),
    st.sampled_from((1, 3)),
    st.sampled_from((1, 3)),
)


def matches(wanted: AclFilter, acl: Acl) -> bool:
    """`AclBindingFilter.matches`, line by line."""
    kind, name, pattern, principal, host, operation, permission = wanted
    if kind not in (1, acl.resource_type) or (pattern not in (1, 2) and pattern != acl.pattern_type):
        return False
    if name is not None:
        if pattern in (1, acl.pattern_type):
            if name != acl.resource_name:
                return False
        elif acl.pattern_type == 3:
            if acl.resource_name not in (name, "*"):
                return False
        elif not name.startswith(acl.resource_name):
            return False
    return (
        (principal is None or principal == acl.principal)
        and (host is None or host == acl.host)
        and operation in (1, acl.operation)
        and permission in (1, acl.permission)
    )


@given(some_acls, st.lists(filters, max_size=4))
def test_a_filter_removes_what_kafkas_would(known: tuple[Acl, ...], wanted: list[AclFilter]) -> None:
    decision = acls.delete(ClusterImage(acls=known), wanted)
    for one, found in zip(wanted, decision.answer, strict=True):
        assert found == tuple(acl for acl in known if matches(one, acl))
    gone = {acl for acl in known if any(matches(one, acl) for one in wanted)}
    left = ClusterImage(acls=known).with_records(decision.records).acls
    assert left == tuple(acl for acl in known if acl not in gone)
    assert bool(decision.records) == bool(gone)


@pytest.mark.parametrize(
    ("acl", "message"),
    [
        (Acl(4, "other", 3, "User:x", "*", 3, 3), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (Acl(2, "", 3, "User:x", "*", 3, 3), "Invalid empty resource name"),
        (Acl(1, "t", 3, "User:x", "*", 3, 3), "Invalid resourceType ANY"),
        (Acl(0, "t", 3, "User:x", "*", 3, 3), "Invalid resourceType UNKNOWN"),
        (Acl(99, "t", 3, "User:x", "*", 3, 3), "Invalid resourceType UNKNOWN"),
        (Acl(-1, "t", 3, "User:x", "*", 3, 3), "Invalid resourceType UNKNOWN"),
        (Acl(2, "t", 2, "User:x", "*", 3, 3), "Invalid patternType MATCH"),
        (Acl(2, "t", 3, "User:x", "*", 1, 3), "Invalid operation ANY"),
        (Acl(2, "t", 3, "User:x", "*", 3, 1), "Invalid permissionType ANY"),
        (Acl(2, "t", 3, "x", "*", 3, 3), "Could not parse principal from `x`"),
    ],
)
def test_an_invalid_binding_is_refused_alone(acl: Acl, message: str) -> None:
    decision = acls.create(ClusterImage(), [acl, A], 0)
    refusal, made = decision.answer
    assert isinstance(refusal, ApiError) and refusal.code is ErrorCode.INVALID_REQUEST
    assert str(refusal).startswith(message) and made is None
    assert decision.records == (AclsChanged(added=(A,)),)


def test_what_exists_is_made_without_a_record() -> None:
    assert acls.create(IMAGE, [A, A], 0).records == ()
    new = Acl(3, "g", 3, "User:x", "*", 3, 3)
    assert acls.create(IMAGE, [A, new, new], 0).records == (AclsChanged(added=(new,)),)


def test_an_unknown_filter_is_refused_and_too_many_open_ones() -> None:
    first, second, third = acls.delete(IMAGE, [AclFilter(0), AclFilter(operation=77), AclFilter(2, "a", 3)]).answer
    assert isinstance(first, ApiError) and str(first) == "Unknown patternFilter."
    assert isinstance(second, ApiError) and str(second) == "Unknown entryFilter."
    assert third == (A,)
    with pytest.raises(ApiError, match="at most 20 filters"):
        acls.delete(IMAGE, [AclFilter()] * 21)
    assert len(acls.delete(IMAGE, [AclFilter(2, "a", 3)] * 1000).answer) == 1000


def test_one_request_makes_a_bounded_number_and_needs_room() -> None:
    many = [Acl(2, f"t{number}", 3, "User:x", "*", 3, 3) for number in range(acls.RECORDS_MAX + 1)]
    with pytest.raises(ApiError, match="at most 10000"):
        acls.create(ClusterImage(), many, 0)
    with pytest.raises(ApiError, match="metadata takes"):
        acls.create(ClusterImage(), [A], 1 << 40)
