"""Apache Kafka's command-line tools in one Java process.

Owns that process. Always true: each call has a time-out; a tool's exit code, output and errors come back as they
would from a shell, without the one to two seconds a JVM takes to start.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka.kafka_tools import SCRIPT, class_path

_CALL_TIMEOUT_S = 120.0

# A line is a class and its arguments, base64 each; an answer is exit code, output and errors.
_PROGRAM = """
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.utils.Exit;
public class Console {
  static class Ended extends RuntimeException {}
  // A tool that catches what ends it says more, and ends again: its shell would have seen the first end only.
  static int code;
  static String said;
  static ByteArrayOutputStream out, err;
  static void end(int at) {
    if (said == null) { code = at; said = " ." + coded(out) + " ." + coded(err); }
    throw new Ended();
  }
  static String text(String coded) { return new String(Base64.getDecoder().decode(coded), StandardCharsets.UTF_8); }
  static String coded(ByteArrayOutputStream bytes) { return Base64.getEncoder().encodeToString(bytes.toByteArray()); }
  public static void main(String[] arguments) throws Exception {
    Exit.setExitProcedure((at, message) -> end(at));
    Exit.setHaltProcedure((at, message) -> end(at));
    PrintStream answers = System.out;
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] words = Arrays.stream(line.split(" ")).map(Console::text).toArray(String[]::new);
      out = new ByteArrayOutputStream();
      err = new ByteArrayOutputStream();
      said = null;
      System.setOut(new PrintStream(out, true));
      System.setErr(new PrintStream(err, true));
      try {
        Class.forName(words[0]).getMethod("main", String[].class)
            .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
        end(0);
      } catch (Ended over) {
      } catch (java.lang.reflect.InvocationTargetException thrown) {
        if (said == null) {
          thrown.getCause().printStackTrace();
          code = 255;
          said = " ." + coded(out) + " ." + coded(err);
        }
      }
      answers.println(code + said);
      answers.flush();
    }
  }
}
"""


class Said(NamedTuple):
    """What a tool printed, and how it ended."""

    code: int
    out: str
    err: str


class KafkaConsole:
    """Run tools by class name; one at a time."""

    def __init__(self, folder: Path) -> None:
        source = folder / "Console.java"
        source.write_text(_PROGRAM)
        self._log = (folder / "console.log").open("w")
        command = ["java", "-Xmx512m", "-cp", f"{SCRIPT.parent / 'conf'}:{class_path()}", str(source)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def run(self, tool: str, *arguments: str) -> Said:
        """`tool` is a class such as `org.apache.kafka.tools.TopicCommand`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = (base64.b64encode(word.encode()).decode() for word in (tool, *arguments))
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        timer = threading.Timer(_CALL_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"no answer from {tool} {arguments} within {_CALL_TIMEOUT_S} s, or Java ended"
        code, out, err = line.split()
        return Said(int(code), *(base64.b64decode(coded[1:]).decode() for coded in (out, err)))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextlib.contextmanager
def kafka_console(folder: Path) -> Iterator[KafkaConsole]:
    """One for as long as the block lasts."""
    console = KafkaConsole(folder)
    try:
        yield console
    finally:
        console.close()
