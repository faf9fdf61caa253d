"""`ssl.principal.mapping.rules`: maps a certificate's subject to a principal's name, like Kafka's `SslPrincipalMapper`.

The first rule that matches the complete name applies. `DEFAULT` leaves the name as it is;
`RULE:pattern/replacement/[LU]` replaces it and changes its case. If no rule matches the subject, the connection is
closed. Patterns have Java's syntax. Syntax that has another meaning in Python's `re` is translated or refused. Pure.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from broker.config.values import InvalidConfig

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"  # Kafka's limit
_SPLIT: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_PARSE: Final = re.compile(_RULE, re.ASCII)
_REFERENCE: Final = re.compile(r"\$(\d+)", re.ASCII)
_CONFIG: Final = "ssl.principal.mapping.rules"


class NoRuleMatches(ValueError):
    """No rule matches this subject."""


class _Rule(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        replacement = _literal_references(self.replacement, self.pattern.groups)
        found = self.pattern.sub(lambda match: _expanded(replacement, match), name)
        if self.case == "L":
            return found.lower()
        return found.upper() if self.case == "U" else found


class PrincipalMapping:
    """The rules of one listener. The constructor raises InvalidConfig for rules that cannot be parsed."""

    def __init__(self, rules: str) -> None:
        self._text = rules
        self._rules = [rule for text in _split(rules) if (rule := _parsed(text)) is not None]

    def name_of(self, subject: str) -> str:
        """The principal's name for a subject. Raises NoRuleMatches."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoRuleMatches(f"no rule of {_CONFIG}={self._text} applies to {subject}")


def _split(rules: str) -> list[str]:
    return [match[1] for match in _SPLIT.finditer(rules.strip())]


def _parsed(text: str) -> _Rule | None:
    """The rule of `text`; None if the text is empty."""
    match = _PARSE.match(text)
    assert match is not None  # the pattern also matches an empty text
    if match.end() != len(text):
        raise InvalidConfig(f"{_CONFIG}: Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match[1] is not None:
        return _Rule(None)
    if match[2] is None:
        return None
    try:
        pattern = re.compile(_python_pattern(match[2]), re.ASCII)
    except re.error as refused:
        raise InvalidConfig(f"{_CONFIG}: the pattern of {text} cannot be read: {refused}") from None
    return _Rule(pattern, match[4], match[6])


def _python_pattern(java: str) -> str:
    """The same pattern for Python's `re`. Raises `re.error` for unsupported syntax."""
    if "&&" in java or re.search(r"\[[^\]\\]*\[", java):
        raise re.error("only Java reads a set within a set; write one set")
    named = re.sub(r"(?<!\\)\(\?<(?![=!])", "(?P<", java)
    return re.sub(r"((?:^|[^\\])(?:\\\\)*)\\z", r"\1\\Z", named)


def _literal_references(replacement: str, groups: int) -> str:
    """Kafka's `escapeLiteralBackReferences`: `$7` is text if the pattern has fewer groups. As in Kafka, an insertion
    does not shift the positions of later insertions.
    """
    if groups == 0:
        return replacement
    value = replacement
    for match in _REFERENCE.finditer(replacement):
        digits = match[1]
        if digits.startswith("0"):
            continue
        index = int(digits)
        while index > groups and index >= 10:
            index //= 10
        if index > groups:
            at = match.start(1) - 1
            value = f"{value[:at]}\\{value[at:]}"
    return value


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """Java's `Matcher.appendReplacement`. Raises NoRuleMatches where Java raises."""
    out, at, groups = [], 0, match.re.groups
    while at < len(replacement):
        char = replacement[at]
        at += 1
        if char not in "\\$":
            out.append(char)
        elif at == len(replacement):
            raise NoRuleMatches(f"{_CONFIG}: the replacement {replacement} ends with {char}")
        elif char == "\\":
            out.append(replacement[at])
            at += 1
        elif replacement[at] == "{":
            end = replacement.find("}", at)
            name = replacement[at + 1 : end] if end > 0 else ""
            if name not in match.re.groupindex:
                raise NoRuleMatches(f"{_CONFIG}: the replacement {replacement} names no group of its pattern")
            out.append(match[name] or "")
            at = end + 1
        else:
            at, index = _reference(replacement, at, groups)
            out.append(match[index] or "")
    return "".join(out)


def _reference(replacement: str, at: int, groups: int) -> tuple[int, int]:
    """End and number of the group reference at `at`. The number takes digits as long as it names a group."""
    if not "0" <= replacement[at] <= "9" or (index := int(replacement[at])) > groups:
        raise NoRuleMatches(f"{_CONFIG}: the replacement {replacement} names no group of its pattern")
    at += 1
    while at < len(replacement) and "0" <= replacement[at] <= "9":
        longer = index * 10 + int(replacement[at])
        if longer > groups:
            break
        index = longer
        at += 1
    return at, index
