"""Decisions against a model: Kafka's algorithm, written as a scan of all ACLs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metadata.image import ClusterImage
from broker.metadata.records import Acl, AclsChanged
from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType
from broker.security.authorizer.standard import DECISIONS_MAX, Authorizer

# Few of each, so that ACLs meet.
PRINCIPALS = ("User:alice", "User:bob", "User:*")
HOSTS = ("*", "10.0.0.1", "::1", "0:0:0:0:0:0:0:1")
NAMES = ("*", "a", "ab", "b")
OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
ASKED = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.DELETE)

acls = st.builds(
    Acl,
    st.sampled_from(TYPES).map(int),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)).map(int),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS).map(int),
    st.sampled_from((Permission.ALLOW, Permission.DENY)).map(int),
)
acl_sets = st.lists(acls, max_size=16, unique=True).map(tuple)


def same_host(one: str, other: str) -> bool:
    return one == other or {one, other} == {"::1", "0:0:0:0:0:0:0:1"}


def model(known: tuple[Acl, ...], principal: str, host: str, operation: int, kind: int, name: str) -> bool | None:
    """None: no ACL names the resource."""
    naming = [
        acl
        for acl in known
        if acl.resource_type == kind
        and (
            (acl.pattern_type == PatternType.LITERAL and acl.resource_name in (name, "*"))
            or (acl.pattern_type == PatternType.PREFIXED and name.startswith(acl.resource_name))
        )
    ]
    implied = {Operation.DESCRIBE: (3, 4, 6, 7), Operation.DESCRIBE_CONFIGS: (11,)}.get(Operation(operation), ())
    mine = [
        acl
        for acl in naming
        if acl.principal in (principal, "User:*") and (acl.host == "*" or same_host(acl.host, host))
    ]
    if any(acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in mine):
        return False
    if any(
        acl.permission == Permission.ALLOW and acl.operation in (operation, Operation.ALL, *implied) for acl in mine
    ):
        return True
    return False if naming else None


@settings(max_examples=200, deadline=None)
@given(
    acl_sets,
    st.sampled_from(("User:alice", "User:bob")),
    st.sampled_from(("10.0.0.1", "10.0.0.2", "::1")),
    st.sampled_from(ASKED),
    st.sampled_from(TYPES),
    st.sampled_from(("a", "ab", "abc", "b", "", "*")),
    st.booleans(),
)
def test_a_decision_is_that_of_a_scan(
    known: tuple[Acl, ...],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    by_default: bool,
) -> None:
    authorizer = Authorizer(allows_without_acls=by_default)
    authorizer.follow(known)
    wanted = model(known, principal, host, operation, kind, name)
    for _ in range(2):  # decided, and remembered
        assert authorizer.allows(principal, host, operation, kind, name) is (by_default if wanted is None else wanted)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(acl_sets, acl_sets, st.booleans()), max_size=6))
def test_an_index_that_followed_decides_as_one_made_anew(changes: list[tuple[tuple[Acl, ...], ...]]) -> None:
    """Of images that follow from each other, and of one that was read whole (equal ACLs that are other objects)."""
    image, authorizer = ClusterImage(), Authorizer()
    for added, removed, read_anew in changes:
        image = image.with_records([AclsChanged(added, removed)])
        followed = tuple(Acl(*_fields(acl)) for acl in image.acls) if read_anew else image.acls
        authorizer.follow(followed)
        fresh = Authorizer()
        fresh.follow(image.acls)
        for name in ("a", "abc", "b"):
            for kind in TYPES:
                asked = "User:alice", "10.0.0.1", Operation.READ, kind, name
                assert authorizer.allows(*asked) is fresh.allows(*asked)
                assert authorizer._index.decide(*asked) == fresh._index.decide(*asked)
        assert authorizer._index._lengths == fresh._index._lengths
        assert authorizer._index._by_principal == fresh._index._by_principal


def _fields(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


def any_model(known: tuple[Acl, ...], principal: str, host: str, operation: int, kind: int) -> bool:
    """`Authorizer.authorizeByResourceType` of Kafka, line by line."""
    if model(known, principal, host, operation, kind, "hardcode"):
        return True
    deny: dict[int, set[str]] = {3: set(), 4: set()}
    allow: dict[int, set[str]] = {3: set(), 4: set()}
    wildcard = False
    for acl in known:
        if acl.resource_type != kind or not (acl.host == "*" or same_host(acl.host, host)):
            continue
        if acl.principal not in (principal, "User:*") or acl.operation not in (operation, Operation.ALL):
            continue
        if acl.permission == Permission.DENY:
            if acl.pattern_type == 3 and acl.resource_name == "*":
                return False
            deny[acl.pattern_type].add(acl.resource_name)
        elif acl.pattern_type == 3 and acl.resource_name == "*":
            wildcard = True
        else:
            allow[acl.pattern_type].add(acl.resource_name)
    if wildcard:
        return True
    for pattern, names in allow.items():
        for name in names:
            if pattern == 3 and name in deny[3]:
                continue
            if not any(name[:length] in deny[4] for length in range(1, len(name) + 1)):
                return True
    return False


@settings(max_examples=200, deadline=None)
@given(acl_sets, st.sampled_from(("User:alice", "User:bob")), st.sampled_from(("10.0.0.1", "::1")))
def test_some_resource_of_a_type_is_kafkas(known: tuple[Acl, ...], principal: str, host: str) -> None:
    authorizer = Authorizer()
    authorizer.follow(known)
    asked = principal, host, Operation.WRITE, ResourceType.TOPIC
    assert authorizer.allows_any(*asked) is any_model(known, *asked)
    assert authorizer.allows_any(*asked) is any_model(known, *asked)


def topic_acl(name: str, operation: Operation = Operation.WRITE, permission: Permission = Permission.ALLOW) -> Acl:
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:alice", "*", operation, permission)


def may_write(authorizer: Authorizer, name: str, principal: str = "User:alice") -> bool:
    return authorizer.allows(principal, "10.0.0.1", Operation.WRITE, ResourceType.TOPIC, name)


def test_a_denial_wins_in_any_order_and_denies_what_it_names_only() -> None:
    allow, deny = topic_acl("a"), topic_acl("a", permission=Permission.DENY)
    for acls_in_order in ((allow, deny), (deny, allow)):
        authorizer = Authorizer()
        authorizer.follow(acls_in_order)
        assert not may_write(authorizer, "a")
    authorizer = Authorizer()
    authorizer.follow((topic_acl("a", Operation.DESCRIBE), topic_acl("a", Operation.READ, Permission.DENY)))
    assert authorizer.allows("User:alice", "", Operation.DESCRIBE, ResourceType.TOPIC, "a")


def test_a_change_takes_effect_with_its_image_and_is_told() -> None:
    authorizer, told = Authorizer(), list[int]()
    authorizer.watch(lambda: told.append(authorizer.version))
    image = ClusterImage().with_records([AclsChanged((topic_acl("a"),))])
    authorizer.follow(image.acls)
    assert may_write(authorizer, "a")
    authorizer.follow(image.acls)
    assert told == [1]
    authorizer.follow(image.with_records([AclsChanged((), (topic_acl("a"),))]).acls)
    assert not may_write(authorizer, "a") and told == [1, 2]


def test_super_users_may_do_everything_and_before_the_first_image_nobody_else() -> None:
    authorizer = Authorizer(frozenset({"User:admin"}), allows_without_acls=True)
    assert may_write(authorizer, "a", "User:admin") and not may_write(authorizer, "a")
    authorizer.follow((topic_acl("a", permission=Permission.DENY),))
    assert may_write(authorizer, "a", "User:admin") and not may_write(authorizer, "a")
    assert may_write(authorizer, "b")


def test_ever_new_names_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.security.authorizer.standard.DECISIONS_MAX", 10)
    authorizer = Authorizer()
    authorizer.follow((topic_acl("a"),))
    for number in range(100):
        may_write(authorizer, f"x{number}")
        assert len(authorizer._decisions) <= 10
    assert DECISIONS_MAX == 50_000


def test_10000_acls_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undecided look-up touches the patterns of its own name only."""
    authorizer = Authorizer()
    authorizer.follow(tuple(topic_acl(f"t{number}") for number in range(10_000)))
    seen = [len(list(authorizer._index._patterns(ResourceType.TOPIC, name))) for name in ("t1", "t9999", "u")]
    assert seen == [1, 1, 0]


def test_names_that_no_topic_has_take_no_memory() -> None:
    """Found by a penetration test: 50 000 names of 32 KB in FindCoordinator, of a user without any ACL, took 1.5 GB."""
    authorizer = Authorizer()
    authorizer.follow((Acl(3, "g", int(PatternType.PREFIXED), "User:alice", "*", int(Operation.READ), 3),))
    for number in range(100):
        name = f"g{number}".ljust(32_000, "x")
        assert authorizer.allows("User:alice", "10.0.0.1", Operation.READ, ResourceType.GROUP, name)
        assert not authorizer.allows("User:bob", "10.0.0.1", Operation.READ, ResourceType.GROUP, name)
    assert len(authorizer._decisions) == 0
