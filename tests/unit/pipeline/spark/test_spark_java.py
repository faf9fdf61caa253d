"""Which Java starts Spark: JAVA_HOME, PATH, else the runtime from PyPI behind a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logformat.errors import InvalidRequest
from thermocline.pipeline.spark import java


def fake_java(home: Path, version: str) -> Path:
    """A `bin/java` that says `version` and prints the arguments it was given."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\nprintf "%s\\n" "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_versions(said: str, version: int | None) -> None:
    assert java.parse_version(said) == version


@pytest.mark.not_fast
def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home, on_path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{on_path.parent}:{os.environ['PATH']}"}
    assert java.java_home(environment) == str(home.parent.parent)


@pytest.mark.not_fast
def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    """Spark 4 needs 17: a JAVA_HOME of 8 gives way to the Java on PATH."""
    fake_java(tmp_path / "old", "1.8.0_292")
    new = fake_java(tmp_path / "new", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{new.parent}:{os.environ['PATH']}"}
    assert java.prepare_environment(environment) == str(tmp_path / "new")
    assert environment["JAVA_HOME"] == str(tmp_path / "new")
    assert environment["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.not_fast
def test_a_link_on_path_leads_to_its_home(tmp_path: Path) -> None:
    """/usr/bin/java is a link; a home needs bin/java below it."""
    real = fake_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(real)
    assert java.java_home({"PATH": f"{tmp_path / 'links'}:{os.environ['PATH']}"}) == str(tmp_path / "jdk")


@pytest.mark.not_fast
def test_without_java_the_runtime_from_pypi_is_used(tmp_path: Path) -> None:
    """Behind a launcher in the user's cache, written once."""
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.java_home(environment)
    assert home.startswith(str(tmp_path / "cache" / "thermocline"))
    assert subprocess.run([f"{home}/bin/java", "-version"], capture_output=True).returncode == 0
    written = os.stat(f"{home}/bin/java").st_mtime_ns
    assert java.java_home(environment) == home
    assert os.stat(f"{home}/bin/java").st_mtime_ns == written


@pytest.mark.not_fast
def test_the_launcher_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    """Also arguments with spaces and quotes, and a runtime whose path has them."""
    runtime = fake_java(tmp_path / "a b'c", "25")
    home = java.launcher_home(str(runtime), str(tmp_path / "cache"))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "it's", ""]
    out = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout
    assert out.split("\n")[:-1] == ["-Xmx1g", "two words", "it's", ""]


def test_a_damaged_launcher_is_written_again(tmp_path: Path) -> None:
    """A machine that died while writing leaves half a file: it is not run."""
    runtime = fake_java(tmp_path / "jdk", "25")
    home = java.launcher_home(str(runtime), str(tmp_path))
    launcher = Path(home, "bin", "java")
    whole = launcher.read_bytes()
    launcher.write_bytes(whole[:10])
    assert java.launcher_home(str(runtime), str(tmp_path)) == home
    assert launcher.read_bytes() == whole


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = java.launcher_home("/bin/true", str(tmp_path / "file" / "cache"))
    assert os.access(f"{home}/bin/java", os.X_OK)


@pytest.mark.not_fast
def test_no_java_anywhere_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)
    fake_java(tmp_path / "old", "1.8.0_292")
    with pytest.raises(InvalidRequest, match=r"Java 17 or newer: .*Java 8.*pip install"):
        java.java_home({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})
