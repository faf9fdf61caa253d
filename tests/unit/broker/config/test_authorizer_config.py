"""authorizer.class.name and its two companions: one class is served, and nothing is open by a slip."""

from __future__ import annotations

import pytest

from broker.config.authorizer import STANDARD_AUTHORIZER, AuthorizerConfig, authorizer_config
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.config.sources import ConfigError
from broker.config.values import InvalidConfig


def test_without_a_class_there_is_no_authorizer() -> None:
    assert authorizer_config(" ", "User:admin", True) is None


def test_super_users_are_separated_by_semicolons() -> None:
    """A distinguished name has commas."""
    found = authorizer_config(STANDARD_AUTHORIZER, " User:admin ;User:CN=b1,O=x;; ", False)
    assert found == AuthorizerConfig(frozenset({"User:admin", "User:CN=b1,O=x"}), False)


@pytest.mark.parametrize("name", ["kafka.security.authorizer.AclAuthorizer", "org.apache.ranger.X", "none"])
def test_another_class_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="may do everything"):
        authorizer_config(name, None, False)


def test_a_super_user_without_a_type_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="expected a string in format principalType:principalName but got admin"):
        authorizer_config(STANDARD_AUTHORIZER, "User:a;admin", False)


def test_the_default_denies() -> None:
    config = resolve({"log.dirs": "/d"}, [f"authorizer.class.name={STANDARD_AUTHORIZER}"], {}, None, Launch())
    assert config.authorizer == AuthorizerConfig(frozenset(), False)
    with pytest.raises((ConfigError, InvalidConfig)):
        resolve({"log.dirs": "/d"}, ["allow.everyone.if.no.acl.found=yes"], {}, None, Launch())
