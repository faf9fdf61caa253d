"""`sasl.jaas.config`: one login module with its options, in the syntax that Kafka reads (`JaasConfig`).

    org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" user_alice="secret";

Options hold secrets, so errors give the position of a mistake but never the text. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from logformat.errors import InvalidRequest

_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""  # between tokens
    r"""|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[^\s"'=;]+)|(?P<mark>[=;])""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_USER: Final = "user_"
TEXT_CHARS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module's class and options."""

    class_name: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """Passwords by user name, from the options `user_NAME`."""
        found = ((name.removeprefix(_USER), value) for name, value in self.options.items() if name.startswith(_USER))
        return {user: password for user, password in found if user}


def parse_jaas(text: str, config: str) -> LoginModule:
    """The login module of `text`, the value of `config`. Raises InvalidRequest, which does not show the text."""

    def wrong(what: str, at: int) -> InvalidRequest:
        return InvalidRequest(
            f"{config}: {what} at character {at + 1}; write one module as "
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'
        )

    if len(text) > TEXT_CHARS_MAX:
        raise wrong("more than 1 MiB of text", TEXT_CHARS_MAX)
    tokens = _tokens(text, wrong)
    if len(tokens) < 3 or tokens[-1][:2] != ("mark", ";"):
        raise wrong("no closing ';', or no module and flag before it,", len(text))
    (kind, class_name, at), (flag_kind, flag, flag_at), *rest = tokens[:-1]
    if kind != "word":
        raise wrong("no class name", at)
    if flag_kind != "word" or flag.lower() not in _FLAGS:
        raise wrong(f"no control flag ({', '.join(_FLAGS)})", flag_at)
    if len(rest) % 3:
        raise wrong('an option that is not NAME="value"', rest[-1][2])
    options: dict[str, str] = {}
    for index in range(0, len(rest), 3):
        (name_kind, name, at), (_, equals, _), (value_kind, value, _) = rest[index : index + 3]
        if name_kind == "mark" or equals != "=" or value_kind == "mark":
            raise wrong('an option that is not NAME="value", or a second login module,', at)
        if name in options:
            raise wrong("an option that was given before", at)
        options[name] = value
    return LoginModule(class_name, options)


def _tokens(text: str, wrong: Callable[[str, int], InvalidRequest]) -> list[tuple[str, str, int]]:
    """Kind, value and place of each token."""
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise wrong("a quote that is not closed", at)
        if match.lastgroup == "quoted":
            found.append(("quoted", _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), match[0][1:-1]), at))
        elif match.lastgroup is not None:
            found.append((match.lastgroup, match[0], at))
        at = match.end()
    return found
