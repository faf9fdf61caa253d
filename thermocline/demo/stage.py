"""Where a demo is played: a directory of its own, removed afterwards; a failure is told with what the processes said.

Always true: nothing of it is left on the disk. Must not know what is played.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from thermocline.demo.payload import Failed

_LOG_CHARS_MAX: Final = 2000  # of each log's end


def play(demo: Callable[[Path], None]) -> int:
    """The exit code: 0, or 1 where the demo saw what it must not see."""
    root = Path(tempfile.mkdtemp(prefix="thermocline-demo-"))
    try:
        demo(root)
    except (Failed, KafkaException) as failure:
        told = "\n".join(
            f"{log.name}:\n{log.read_text(errors='replace')[-_LOG_CHARS_MAX:]}" for log in sorted(root.glob("*.log"))
        )
        print(f"\nthe demo failed: {failure}\n{told}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0
