"""The `thermocline` command: finds the noun, runs it, and turns what it raises into an exit code and one line.

Owns the table of nouns. Always true: nothing heavy is imported before a command is chosen; a person never sees a stack
trace for something the world did. Must not know what any command does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import thermocline
from thermocline.cli import archive, bucket, consume, debug, group, log_dump, produce, scrub, serve, tier, topic
from thermocline.cli.arguments import Parser
from thermocline.cli.outcome import CommandFailed, Exit, exit_of

_NOUNS = (serve, topic, produce, consume, group, tier, bucket, archive, scrub, log_dump, debug)


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="thermocline",
        description="A log service that speaks the Kafka protocol: warm on disk, cold in a bucket.",
        example="thermocline serve --data-dir /var/lib/thermocline --bucket s3://my-bucket/thermocline",
    )
    top.add_argument("--version", action="version", version=f"thermocline {thermocline.__version__}")
    nouns = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for noun in _NOUNS:
        noun.register(nouns)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (usage errors and --help leave through SystemExit, as argparse does)."""
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except CommandFailed as failed:
        return _fail(str(failed), failed.code)
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as a shell expects
    except BrokenPipeError:
        # `thermocline consume | head`: the reader has enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except OSError as failed:
        return _fail(str(failed), Exit.FAILED)
    except Exception as failed:
        from logformat.errors import ThermoclineError

        if not isinstance(failed, ThermoclineError):
            raise
        return _fail(str(failed), exit_of(failed))


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"thermocline: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
