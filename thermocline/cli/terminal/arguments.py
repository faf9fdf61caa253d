"""Shared argparse parts: parsers with examples, and typed values.

Every help ends with an example. Wrong usage is exit 2 and one line on stderr.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from thermocline.cli.terminal.outcome import Exit

T = TypeVar("T")
_INT32_MAX = 2**31 - 1  # the protocol's limit
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "THERMOCLINE_BOOTSTRAP_SERVER"
COMMAND_CONFIG_VARIABLE = "THERMOCLINE_COMMAND_CONFIG"


class Parser(argparse.ArgumentParser):
    """argparse with an `example` at the end of the help, and without abbreviated flags (scripts rely on names)."""

    def __init__(self, *args: object, example: str = "", **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        if example:
            shown = "\n".join(f"  {line}" for line in example.strip().splitlines())
            kwargs["epilog"] = f"example{'s' if shown.count(chr(10)) else ''}:\n{shown}"
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def parse_known_args(  # type: ignore[override]  # argparse's own is overloaded by the namespace's type
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Report unknown arguments by this parser. argparse would report them by the topmost parser, whose help does
        not have this command's flags.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n(see {self.prog} --help)\n")


Subparsers = argparse._SubParsersAction  # argparse has no public name for this class
Run = Callable[[argparse.Namespace], int]


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """An argparse type from a parser that raises InvalidRequest or ValueError."""
    from logformat.errors import InvalidRequest

    def convert(text: str) -> T:
        try:
            return parse(text)
        except (InvalidRequest, ValueError) as refused:
            raise argparse.ArgumentTypeError(str(refused)) from None

    return convert


def filled(text: str) -> str:
    """A non-empty value; `-t "$TOPIC"` may be of an unset variable."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty")
    return text


def positive(text: str) -> int:
    """A whole number from 1, below 2^31."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number from 0, below 2^31."""
    return _whole(text, 0)


def _whole(text: str, lowest: int) -> int:
    # The length limit also keeps int() from refusing more than 4 300 digits.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_INT32_MAX)) else -1
    if not lowest <= number <= _INT32_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {lowest} to {_INT32_MAX}")
    return number


def key_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write key=value")
    return name, value


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a connection: `-b HOST:PORT`, `--command-config FILE`, `-X K=V`; the first two also from the
    environment."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=os.environ.get(BOOTSTRAP_VARIABLE, BOOTSTRAP_DEFAULT),
        help=f"a broker to ask first (also from {BOOTSTRAP_VARIABLE}; default 127.0.0.1:9092)",
    )
    add_client_config(parser)


def add_client_config(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the client configuration, without `-b`."""
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        default=os.environ.get(COMMAND_CONFIG_VARIABLE),
        help=f"client properties, by Java's or librdkafka's names (also from {COMMAND_CONFIG_VARIABLE})",
    )
    parser.add_argument(
        "-X",
        dest="extra",
        type=key_value,
        action="append",
        default=[],
        metavar="K=V",
        help="a librdkafka config, such as client.id=nightly; repeatable",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
