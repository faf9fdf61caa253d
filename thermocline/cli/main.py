"""The `thermocline` command: finds the noun, runs it, and turns what it raises into an exit code and one line.

Owns the table of nouns. Always true: nothing heavy is imported before a command is chosen, and no other command then; a
person never sees a stack trace for something the world did. Must not know what any command does.
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
from thermocline.cli.terminal.arguments import Parser
from thermocline.cli.terminal.outcome import INTERRUPTED, CommandFailed, Exit, exit_of, plain_words

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = "thermocline.cli"
_NOUNS: Final = {
    "serve": f"{_ROOM}.serve.command",
    "topic": f"{_ROOM}.topic.command",
    "produce": f"{_ROOM}.records.produce",
    "consume": f"{_ROOM}.records.consume",
    "group": f"{_ROOM}.group.command",
    "config": f"{_ROOM}.config",
    "cluster": f"{_ROOM}.cluster.command",
    "tier": f"{_ROOM}.tier.command",
    "bucket": f"{_ROOM}.bucket.command",
    "archive": f"{_ROOM}.jobs.archive",
    "scrub": f"{_ROOM}.jobs.scrub",
    "log": f"{_ROOM}.bucket.log_dump",
    "debug": f"{_ROOM}.debug",
}
"""Who adds which command, in the order of `--help`."""


def parser(given: Sequence[str] = ()) -> Parser:
    """The whole command line. `given` begins with a noun: with that noun alone, so that a broker does not load what
    prints tables (35 ms and 4 MiB of its start)."""
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
    """Its text is made when it is asked for: what builds say of themselves takes milliseconds to load."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from seams.interpreter import this_build

        print(f"thermocline {thermocline.__version__}, {this_build()}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (usage errors and --help leave through SystemExit, as argparse does)."""
    _open_closed_streams()
    _speak_utf_8()
    try:
        given = [_text(word) for word in (sys.argv[1:] if argv is None else argv)]
    except UnicodeDecodeError as refused:
        return _fail(f"argument {refused.object!r} is not UTF-8 text", Exit.USAGE)
    arguments = parser(given).parse_args(given)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except CommandFailed as failed:
        return _fail(str(failed), failed.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `thermocline consume | head`: the reader has enough. Python would complain again when it flushes at exit.
        _forget_results()
        return Exit.DONE
    except OSError as failed:
        # Commands open what they write by its name: a disk that is full without one is behind stdout.
        nameless = failed.filename is None and failed.errno in _FULL
        what = f"writing the results to stdout: {failed.strerror}" if nameless else plain_words(failed)
        return _fail(what, Exit.FAILED)
    except Exception as failed:
        from logformat.errors import ThermoclineError

        if not isinstance(failed, ThermoclineError):
            raise
        return _fail(str(failed), exit_of(failed))


def _open_closed_streams() -> None:
    """`thermocline … >&-`: what is written there is nobody's. Left closed, the next file or socket that is opened would
    get the number of stdout, and `print` to a stderr that is not there goes to stdout."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one, unless a lower one was taken
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # as long as the process


def _speak_utf_8() -> None:
    """Results are data: UTF-8 under every locale, as what reads JSON expects. (stderr escapes what it cannot say.)"""
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8")


def _text(word: str) -> str:
    """An argument as UTF-8 under every locale. UnicodeDecodeError when it is none: no library below could encode it."""
    try:
        word.encode()
    except UnicodeEncodeError:  # surrogates: Python's place for bytes that its locale could not read
        return os.fsencode(word).decode()
    return word


def _forget_results() -> None:
    """What stdout still holds goes nowhere: Python would try again when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _forget_results()  # it is the failure, or of no use any more
    print(f"thermocline: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
