"""What a check found: problems, each a value that says which object, whose weights, and what repairs it.

    report = repo.fsck()
    report.ok                                        # nothing is wrong
    for problem in report.problems:
        print(problem.kind, problem.key, problem)    # damaged_pack  packs/4f/4fcd...pack  the frame at 64 ...

Kinds are words that stay the same from release to release; docs/troubleshooting.md explains each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

_RESTORE = (
    "Restore the object from a copy of the store; without one, `deltavc fsck --repair` gives up the ways that need it."
)
_HEAL = "`deltavc fsck --repair` writes it again if the database still knows it; otherwise restore it from a copy."

KINDS: dict[str, str] = {
    "damaged_version": _HEAL,
    "missing_version": _HEAL,
    "damaged_layout": _HEAL,
    "missing_layout": _HEAL,
    "damaged_edge": _HEAL,
    "missing_edge": _HEAL,
    "wrong_edge": "`deltavc fsck --repair` drops the edge, so that nobody tries to walk it.",
    "damaged_pack": _RESTORE,
    "missing_pack": _RESTORE,
    "damaged_file": "Restore the object from a copy of the store; nothing else holds these bytes.",
    "missing_file": "Restore the object from a copy of the store; nothing else holds these bytes.",
    "damaged_ref": _HEAL,
    "missing_ref": _HEAL,
    "broken_ref": "Restore the entries of this ref from a copy of the store; nothing can tell which of them is wrong.",
    "damaged_settings": "Restore the object from a copy of the store, or set the policy anew: `deltavc policy`.",
    "missing_settings": "Restore the object from a copy of the store, or set the policy anew: `deltavc policy`.",
    "damaged_drop": "`deltavc fsck --repair` writes the drop again: it holds, whatever stands in it.",
    "wrong_weights": "`deltavc fsck --repair` drops the edge; other ways to the version may be whole.",
    "no_path": "What was lost comes back from a copy of the store, not what was given up; `deltavc log` shows others.",
    "no_way_forward": "`deltavc fsck --repair` writes an edge that leads to it.",
    "index_differs": "`deltavc reindex` (or `deltavc fsck --repair`) fills the database again from the bucket.",
}
"""Every kind of problem, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    key: the object, or the database's table and id for `index_differs`.
    versions: ids of those whose storing or history it concerns; `Report.lost` tells which cannot be had any more.
    what: what is wrong with it, as the end of a sentence. repaired: what was done about it, "" if nothing was.
    """

    kind: str
    key: str
    what: str
    versions: tuple[str, ...] = ()
    repaired: str = ""

    @property
    def hint(self) -> str:
        """The next step."""
        return KINDS[self.kind]

    def __str__(self) -> str:
        return f"{self.key}: {self.what}"

    def fixed(self, how: str) -> Problem:
        """The same problem, after something was done about it."""
        return replace(self, repaired=how)

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "kind": self.kind,
            "key": self.key,
            "what": self.what,
            "versions": list(self.versions),
            "hint": self.hint,
            "repaired": self.repaired or None,
        }


@dataclass(frozen=True, slots=True)
class Counts:
    """How much was looked at. Bytes are those of objects in the store."""

    num_objects: int = 0
    nbytes: int = 0
    num_refs: int = 0
    num_versions: int = 0
    num_edges: int = 0
    num_packs: int = 0
    num_files: int = 0


@dataclass(frozen=True, slots=True)
class Orphans:
    """Objects that nothing committed needs: left by killed writers, dropped, or on their way just now. No problem.

    `deltavc gc` removes them in time. num_unknown: objects under keys that are none of ours, which nobody touches.
    """

    num_objects: int = 0
    nbytes: int = 0
    num_unknown: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What `fsck` found.

    lost: ids of versions whose weights cannot be reached because of the problems; their lineage is kept.
    without_weights: how many versions have no weights because every way to them was dropped on purpose.
    notes: remarks about what is no problem.
    full: whether frames and fingerprints were checked too. num_walked: edges that were, now or by an earlier check
    whose result still holds; the oldest such result is of `since` (UTC, ISO 8601), None if all are of now.
    """

    problems: tuple[Problem, ...]
    lost: tuple[str, ...]
    without_weights: int
    counts: Counts
    orphans: Orphans
    notes: tuple[str, ...]
    full: bool
    num_walked: int
    since: str | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or all that was has been repaired without losing a version's weights."""
        return not self.lost and all(problem.repaired for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        counts = {name: getattr(self.counts, name) for name in Counts.__slots__}
        return {
            "ok": self.ok,
            "problems": [problem.as_json() for problem in self.problems],
            "lost": list(self.lost),
            "without_weights": self.without_weights,
            **counts,
            "orphans": {name: getattr(self.orphans, name) for name in Orphans.__slots__},
            "notes": list(self.notes),
            "full": self.full,
            "num_walked": self.num_walked,
            "since": self.since,
            "seconds": self.seconds,
        }


def merged(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """One problem for each object and kind, with all the versions that it was met for."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        name = (problem.kind, problem.key)
        if name in found:
            versions = tuple(sorted({*found[name].versions, *problem.versions}))
            problem = replace(found[name], versions=versions)
        found[name] = problem
    return tuple(found[name] for name in sorted(found))
