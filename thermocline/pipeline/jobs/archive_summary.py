"""The summary of an archive run, as a table for people and as a JSON row with the same fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thermocline.pipeline.jobs import offset_ranges
from thermocline.pipeline.jobs.archive_plan import Expired
from thermocline.pipeline.jobs.report import Cell, summary_table
from thermocline.units import show_rate, show_seconds, show_size


@dataclass(slots=True)
class ArchiveSummary:
    topic: str
    table: str
    catalog: str  # name and address; readers open the catalog under this name
    dry_run: bool
    partitions: int = 0
    commits: int = 0
    offsets: int = 0
    rows: int = 0
    dead_letters: int = 0
    dead_letters_table: str | None = None
    left_out: int = 0  # records of aborted transactions, which the manifests count
    log_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    tasks: int = 0
    replanned: int = 0  # steps repeated because another archiver committed first
    leftovers_deleted: int = 0
    declared_gaps: int = 0
    lost: list[Expired] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    remaining_offsets: int = 0
    snapshot_id: int | None = None
    seconds: float = 0.0
    archived: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def lines(self) -> Sequence[tuple[str, Cell]]:
        would = "would " if self.dry_run else ""
        read = f"{show_size(self.log_bytes)} ({show_rate(self.log_bytes, self.seconds)})"
        return [
            ("topic", self.topic),
            ("table", self.table),
            ("catalog", self.catalog),
            (f"{would}commit" if self.dry_run else "commits", self.commits),
            ("partitions", self.partitions),
            ("offsets", self.offsets),
            ("rows", None if self.dry_run else self.rows),
            ("dead letters", f"{self.dead_letters:,} in {self.dead_letters_table}" if self.dead_letters else None),
            ("records left out", self.left_out or None),
            ("log bytes", show_size(self.log_bytes) if self.dry_run else read),
            ("files", None if self.dry_run else f"{self.files:,} ({show_size(self.file_bytes)})"),
            ("planned again", self.replanned or None),
            ("leftovers deleted", self.leftovers_deleted or None),
            ("declared gaps", self.declared_gaps or None),
            ("lost", "; ".join(map(str, self.lost)) or None),
            ("damage", "; ".join(self.damage) or None),
            ("offsets left for later", self.remaining_offsets or None),
            ("snapshot", None if self.snapshot_id is None else str(self.snapshot_id)),
            ("took", show_seconds(self.seconds)),
        ]

    def row(self) -> dict[str, Cell]:
        """The names are part of the `--json` contract."""
        return {
            "topic": self.topic,
            "table": self.table,
            "catalog": self.catalog,
            "dry_run": self.dry_run,
            "partitions": self.partitions,
            "commits": self.commits,
            "offsets": self.offsets,
            "rows": self.rows,
            "dead_letters": self.dead_letters,
            "records_left_out": self.left_out,
            "log_bytes": self.log_bytes,
            "files": self.files,
            "file_bytes": self.file_bytes,
            "replanned": self.replanned,
            "leftovers_deleted": self.leftovers_deleted,
            "declared_gaps": self.declared_gaps,
            "lost": "; ".join(map(str, self.lost)) or None,
            "damage": "; ".join(self.damage) or None,
            "remaining_offsets": self.remaining_offsets,
            "archived": offset_ranges.encode(self.archived),
            "snapshot_id": self.snapshot_id,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        return summary_table(self.lines())
