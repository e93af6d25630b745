"""A bisector: from marks to what is to be tried next, and in the end to what was found. It keeps no marks itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deltavc.bisect.inquiry import Standing, standing
from deltavc.bisect.marks import Marks, Verdict
from deltavc.bisect.result import Bisection, Evaluation
from deltavc.bisect.search import Found, Try
from deltavc.errors import CorruptObject, LayoutMismatch, MissingObject, NoPath
from deltavc.lineage.descent import outside
from deltavc.lineage.index import Index
from deltavc.lineage.names import branch_ref
from deltavc.version import Version

if TYPE_CHECKING:
    from deltavc.access import Access
    from deltavc.bisect.workbench import Workbench
    from deltavc.diff import Diff

log = logging.getLogger(__name__)

UNREACHABLE = (NoPath, CorruptObject, MissingObject, LayoutMismatch)
"""Why a version cannot be brought to where it is to be tried, though others can."""


class Mover(Protocol):
    """Where versions are tried."""

    def move(self, version: str) -> Any:
        """Bring a version there. Gives what is to be looked at."""


@dataclass(frozen=True, slots=True)
class Bisector:
    """What a search asks of a repository. Make one with `repo.bisector`. Weights are not looked at before they must."""

    index: Index
    repository: str
    access: Callable[[], Access]
    diff: Callable[[str, str], Diff]

    def standing(self, marks: Marks) -> Standing:
        """Where a search stands; `deltavc.bisect.inquiry.standing` tells what may be raised."""
        return standing(self.index, marks)

    def versions(self, ids: Sequence[str]) -> list[Version]:
        """What is known of versions, in the order given."""
        return [Version.known(info) for info in self.index.versions(ids)]

    def is_in(self, version: str, branch: str) -> bool:
        """Whether a branch has a version in its history now."""
        ref = branch_ref(branch)
        self.index.catch_up([ref])
        entry = self.index.head(ref)
        return entry is not None and entry.new is not None and not outside(self.index, [version], entry.new)

    def workbench(self, directory: str | Path, leave_out: Sequence[str] = ()) -> Workbench:
        """A directory to try versions in; `Workbench` tells what may be raised."""
        from deltavc.bisect.workbench import Workbench

        return Workbench(self.access(), self.repository, directory, leave_out)

    def evaluate(self, mover: Mover, version: str, test: Callable[[Any, Version], Verdict]) -> Evaluation:
        """Bring a version to where it is tried, and try it. One that cannot be brought there is skipped, and that said.

        Raises what moving and testing raise otherwise.
        """
        (known,) = self.versions([version])
        started = time.perf_counter()
        try:
            there = mover.move(version)
        except UNREACHABLE as error:
            log.warning("%s cannot be tried and is skipped: %s", known, error)
            return Evaluation(known, "skip", time.perf_counter() - started, 0.0)
        moved = time.perf_counter()
        verdict = test(there, known)
        return Evaluation(known, verdict, moved - started, time.perf_counter() - moved)

    def conclusion(self, found: Standing, evaluations: Sequence[Evaluation] = ()) -> Bisection:
        """What a search that has come to its end found. Holds two versions in main memory.

        Raises:
            StoreError, DatabaseUnavailable
        """
        assert not isinstance(found.choice, Try)
        suspects = tuple(self.versions(found.suspects))
        if not isinstance(found.choice, Found):
            return Bisection(None, suspects, tuple(evaluations))
        (first_bad,) = suspects
        if not first_bad.parents:
            return Bisection(first_bad, suspects, tuple(evaluations))
        (before,) = self.versions(first_bad.parents[:1])
        changed = None
        try:
            changed = self.diff(before.id, first_bad.id)
        except UNREACHABLE as error:
            log.warning("what changed in %s cannot be told: %s", first_bad, error)
        return Bisection(first_bad, suspects, tuple(evaluations), before, changed)
