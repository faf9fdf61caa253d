"""What happens when history is not there: a DataLoss that names place and remedy, or a line in the summary.

Owns the wording and the choice. Always true: nothing that is missing or damaged passes without one of the two. Must not
know how it was found.
"""

from __future__ import annotations

import logging
from typing import Final

from thermocline.pipeline.split import DataLoss, Loss

log = logging.getLogger(__name__)

VERIFY: Final = (
    "run `thermocline scrub` or `thermocline bucket verify --deep`, restore the object from a copy or version"
)
STEP_OVER: Final = "or read with failOnDataLoss=false (fail_on_data_loss=False) to step over it"


class LossPolicy:
    """The judge of one read: with `fail` the first loss raises, without it is counted in `loss`, and logged."""

    def __init__(self, loss: Loss, *, fail: bool, quiet: bool = False) -> None:
        """`quiet`: what is counted is logged by somebody else."""
        self.loss = loss
        self._quiet = quiet
        self.fail = fail

    def meet(
        self,
        topic: str,
        partition: int,
        first: int,
        end: int,
        what: str,
        *,
        key: str | None = None,
        cause: BaseException | None = None,
        remedy: str = VERIFY,
        verb: str = "are lost",
    ) -> None:
        """Offsets `[first, end)` of a partition cannot be read, or not all of them. Raises DataLoss, or counts it."""
        where = f" (object {key})" if key is not None else ""
        line = f"{topic}-{partition}: offsets [{first}, {end}) {verb}{where}: {what}"
        if self.fail:
            raise DataLoss(f"{line}; {remedy}, {STEP_OVER}") from cause
        if not self._quiet:
            log.warning("%s; stepped over", line)
        self.loss.damage.append(f"{line}; {remedy}")
