"""What commands on Spark show of the JVM's words: nothing, unless only they explain a failure."""

from __future__ import annotations

import subprocess

import pytest

from logformat.errors import InvalidRequest
from thermocline.cli.jobs.spark_job import OUTPUT_BYTES_MAX, jvm_output, stderr_to
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.pipeline.jobs.spark_tasks import TasksFailed


def a_process_speaks(word: str = "WARN noise") -> None:
    subprocess.run(["/bin/sh", "-c", f"echo '{word}' >&2"], check=True)


def without_librdkafka(err: str) -> str:
    """Clients that other tests of this process left behind complain on the same stderr, from threads of their own."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("%"))


@pytest.mark.not_fast
def test_a_process_started_meanwhile_is_not_heard_and_ours_is_again(capfd: pytest.CaptureFixture[str]) -> None:
    with jvm_output() as words:
        with stderr_to(words):
            a_process_speaks()
        a_process_speaks("ours")
        words.seek(0)
        assert words.read() == b"WARN noise\n"
    assert without_librdkafka(capfd.readouterr().err) == "ours\n"


@pytest.mark.not_fast
def test_verbose_leaves_stderr_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    with stderr_to(None):
        a_process_speaks()
    assert without_librdkafka(capfd.readouterr().err) == "WARN noise\n"


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("failed", "heard"),
    [
        (InvalidRequest("said in one line"), False),
        (TasksFailed("a worker died"), True),
        (CommandFailed("Spark did not start"), True),
        (OSError("anything"), True),
    ],
)
def test_the_last_words_are_shown_when_only_they_explain(
    failed: Exception, heard: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last ones only, however much was said before them."""
    with pytest.raises(type(failed)), jvm_output() as words:
        with stderr_to(words):
            a_process_speaks("first words")
            words.write(b"x" * OUTPUT_BYTES_MAX)
            words.flush()
            a_process_speaks("last words")
        raise failed
    err = capfd.readouterr().err
    assert ("last words" in err) == heard and "first words" not in err
