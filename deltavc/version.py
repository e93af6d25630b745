"""What users get to see of a version: its record, and what storing it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from deltavc import notebook
from deltavc.amounts import nbytes, share
from deltavc.lineage.info import VersionInfo
from deltavc.lineage.records import VersionRecord


@dataclass(frozen=True)
class Version:
    """A point in the lineage.

    id: 64 hex digits, the BLAKE3 of the stored record. branch: the branch it was committed to.
    time: when, in UTC. metrics: name to float, NaN and infinities included. files: name to size in bytes.
    layout, fingerprint: ids of what tensors it has and of their values.
    num_lanes: lanes of all its tensors. changed_lanes: how many its commit changed.
    stored_bytes: what its commit added to the store in packs and files. weights: whether they are kept, as far as the
    database knows; a version without can be looked at and not checked out.
    timings: seconds per stage of the call that returned it (read, diff, encode, upload, index); work done on
    several threads is summed.
    """

    id: str
    parents: tuple[str, ...]
    branch: str | None
    step: int | None
    message: str
    author: str
    time: datetime
    metrics: Mapping[str, float]
    meta: Mapping[str, Any]
    files: Mapping[str, int]
    layout: str
    fingerprint: str
    num_lanes: int
    changed_lanes: int
    stored_bytes: int
    weights: bool = True
    timings: Mapping[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        record: VersionRecord,
        *,
        branch: str | None,
        num_lanes: int,
        changed_lanes: int,
        stored_bytes: int,
        weights: bool = True,
        timings: Mapping[str, float] | None = None,
    ) -> Self:
        """A stored record as users see it."""
        return cls(
            id=record.id,
            parents=record.parents,
            branch=branch,
            step=record.step,
            message=record.message,
            author=record.author,
            time=datetime.fromisoformat(record.time),
            metrics={name: float(value) for name, value in record.metrics.items()},
            meta=record.meta,
            files={name: file.nbytes for name, file in record.files.items()},
            layout=record.layout,
            fingerprint=record.fingerprint,
            num_lanes=num_lanes,
            changed_lanes=changed_lanes,
            stored_bytes=stored_bytes,
            weights=weights,
            timings=timings or {},
        )

    @classmethod
    def known(cls, info: VersionInfo, branch: str | None = None) -> Self:
        """A version as the database knows it; `branch` is where it was asked for."""
        return cls.of(
            info.record,
            branch=branch or info.branch,
            num_lanes=info.num_lanes,
            changed_lanes=info.changed_lanes or 0,
            stored_bytes=info.stored_bytes,
            weights=info.weights,
        )

    @property
    def short_id(self) -> str:
        """The first 12 digits of the id, as the command line shows it."""
        return self.id[:12]

    def __str__(self) -> str:
        step = f" step {self.step}" if self.step is not None else ""
        return f"{self.short_id}{step}{' ' + self.message if self.message else ''}"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        changed = f"{share(self.changed_lanes, self.num_lanes)} of {self.num_lanes:,} lanes"
        told = [
            ("branch", self.branch),
            ("step", self.step),
            *((f"metric {name}", f"{value:.6g}") for name, value in self.metrics.items()),
            ("message", self.message),
            ("author", self.author),
            ("time", f"{self.time:%Y-%m-%d %H:%M:%S %Z}"),
            ("parents", " ".join(parent[:12] for parent in self.parents)),
            ("changed", changed),
            ("stored", nbytes(self.stored_bytes) if self.weights else "no weights: they were not kept"),
            *((f"meta {name}", value) for name, value in self.meta.items()),
            *((f"file {name}", nbytes(size)) for name, size in self.files.items()),
        ]
        return notebook.facts(f"version {self.id}", told)

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it: non-finite metrics are strings."""
        return {
            "id": self.id,
            "parents": list(self.parents),
            "branch": self.branch,
            "step": self.step,
            "message": self.message,
            "author": self.author,
            "time": self.time.isoformat(),
            "metrics": {name: metric_json(value) for name, value in self.metrics.items()},
            "meta": dict(self.meta),
            "files": dict(self.files),
            "layout": self.layout,
            "fingerprint": self.fingerprint,
            "num_lanes": self.num_lanes,
            "changed_lanes": self.changed_lanes,
            "stored_bytes": self.stored_bytes,
            "weights": self.weights,
        }


def metric_json(value: float) -> float | str:
    """A metric as stored: non-finite values as the strings NaN, Infinity, -Infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
