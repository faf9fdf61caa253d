"""Client configuration of this command. One process runs one command, so it sets the configuration once, before the
command runs.

The configuration is not passed as a parameter, because a command that forgot to pass it would fail only on a secured
cluster.
"""

from __future__ import annotations

from dataclasses import replace

from broker.security_protocol import SecurityProtocol
from thermocline.cli.clients.client_properties import ClientProperties, read_properties
from thermocline.cli.terminal.outcome import CommandFailed, Exit

_current = ClientProperties()


def current() -> ClientProperties:
    """The client configuration of this command."""
    return _current


def use(config_file: str | None, extra: list[tuple[str, str]]) -> ClientProperties:
    """Take the file of `--command-config` and the `-X` pairs for this command. Raises CommandFailed (usage)."""
    global _current
    text = None
    if config_file:
        try:
            with open(config_file, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as unreadable:
            raise CommandFailed(f"--command-config {config_file}: {unreadable}", Exit.USAGE) from None
    _current = read_properties(text, extra)
    return _current


def name_bootstrap_file(path: str) -> None:
    """Let errors name this file as the source of the brokers' address."""
    global _current
    _current = replace(_current, bootstrap_file=path)


def no_topic(topic: str) -> CommandFailed:
    """The error for a topic that does not exist. A user with a login may also lack Describe on it, and brokers do not
    tell such a user that it exists.
    """
    seen = "" if _current.protocol is SecurityProtocol.PLAINTEXT else " that this user may see"
    return CommandFailed(f"there is no topic {topic}{seen}; see `thermocline topic list`")
