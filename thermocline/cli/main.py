"""Main function of `thermocline`: finds the noun, runs its command, and turns errors into an exit code and one line on
stderr.

Imports only the chosen command. Expected errors never print a stack trace.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import thermocline
from thermocline.cli.terminal.arguments import BOOTSTRAP_DEFAULT, Parser
from thermocline.cli.terminal.outcome import INTERRUPTED, CommandFailed, Exit, exit_of, plain_words

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLI = "thermocline.cli"
_NOUNS: Final = {
    "serve": f"{_CLI}.serve.command",
    "topic": f"{_CLI}.topic.command",
    "produce": f"{_CLI}.records.produce",
    "consume": f"{_CLI}.records.consume",
    "group": f"{_CLI}.group.command",
    "user": f"{_CLI}.user.command",
    "certificate": f"{_CLI}.certificate",
    "txn": f"{_CLI}.txn.command",
    "acl": f"{_CLI}.acl.command",
    "quota": f"{_CLI}.quota",
    "config": f"{_CLI}.config",
    "cluster": f"{_CLI}.cluster.command",
    "tier": f"{_CLI}.tier.command",
    "bucket": f"{_CLI}.bucket.command",
    "key": f"{_CLI}.key",
    "archive": f"{_CLI}.jobs.archive",
    "scrub": f"{_CLI}.jobs.scrub",
    "log": f"{_CLI}.bucket.log_dump",
    "debug": f"{_CLI}.debug",
}
"""The module that registers each command, in the order of `--help`."""


def parser(given: Sequence[str] = ()) -> Parser:
    """The complete command line, or one noun's if `given` begins with a noun, so that a broker does not load the table
    printer (35 ms and 4 MiB of its start).
    """
    top = Parser(
        prog="thermocline",
        description="A log service that speaks the Kafka protocol: warm on disk, cold in a bucket.",
        example="thermocline serve --data-dir /var/lib/thermocline --bucket s3://my-bucket/thermocline",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="this version, and how its Python was built")
    nouns = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for noun in given[:1] if given and given[0] in _NOUNS else _NOUNS:
        import_module(_NOUNS[noun]).register(nouns)
    return top


class _Version(argparse.Action):
    """Builds its text on demand, because the build information takes milliseconds to load."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from seams.interpreter import this_build

        print(f"thermocline {thermocline.__version__}, {this_build()}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Usage errors and --help raise SystemExit, as in argparse."""
    _open_closed_streams()
    _write_utf_8()
    try:
        given = [_text(word) for word in (sys.argv[1:] if argv is None else argv)]
    except UnicodeDecodeError as refused:
        return _fail(f"argument {refused.object!r} is not UTF-8 text", Exit.USAGE)
    arguments = parser(given).parse_args(given)
    try:
        if hasattr(arguments, "command_config"):
            _connect_by(arguments)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except CommandFailed as failed:
        return _fail(str(failed), failed.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `thermocline consume | head`. Python would fail again when it flushes at exit.
        _discard_stdout()
        return Exit.DONE
    except OSError as failed:
        # A full disk without a file name in the error concerns stdout.
        nameless = failed.filename is None and failed.errno in _FULL
        what = f"writing the results to stdout: {failed.strerror}" if nameless else plain_words(failed)
        return _fail(what, Exit.FAILED)
    except Exception as failed:
        from logformat.errors import ThermoclineError

        if not isinstance(failed, ThermoclineError):
            raise
        return _fail(str(failed), exit_of(failed))


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null (`thermocline … >&-`). Otherwise the next file or socket would get
    the number of stdout, and `print` to a missing stderr goes to stdout.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, usually this descriptor's
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # as long as the process


def _write_utf_8() -> None:
    """Results are UTF-8 under every locale, as JSON readers expect. (stderr escapes what it cannot encode.)"""
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8")


def _text(word: str) -> str:
    """An argument as UTF-8 under every locale. Raises UnicodeDecodeError if it is not."""
    try:
        word.encode()
    except UnicodeEncodeError:  # surrogates stand for bytes that the locale could not decode
        return os.fsencode(word).decode()
    return word


def _discard_stdout() -> None:
    """Discard buffered output, which Python would flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _connect_by(arguments: argparse.Namespace) -> None:
    """Set how clients of this command connect; without `-b`, the file may name the brokers."""
    if not arguments.command_config and not arguments.extra:
        return
    from thermocline.cli.clients.connection_properties import name_bootstrap_file, use

    properties = use(arguments.command_config, arguments.extra)
    if properties.bootstrap and arguments.bootstrap_server == BOOTSTRAP_DEFAULT:
        arguments.bootstrap_server = properties.bootstrap
        name_bootstrap_file(arguments.command_config)


def _fail(message: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    print(f"thermocline: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
