"""Events of logins and credentials for the audit log (S12). No secret and no token is ever passed here."""

from __future__ import annotations

import logging

log = logging.getLogger("thermocline.audit")


def login_failed(listener: str, address: str, mechanism: str, user: str, why: str) -> None:
    """`user` is a claim, not a fact."""
    log.info(
        "login failed: listener=%s address=%s mechanism=%s user=%r: %s", listener, address, mechanism, user[:100], why
    )


def credential_changed(principal: str, user: str, mechanism: str, what: str) -> None:
    log.info("credential %s: user=%r mechanism=%s by=%s", what, user[:100], mechanism, principal)
