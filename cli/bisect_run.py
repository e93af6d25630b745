"""deltavc bisect run: the search to its end, with a command that says what each version is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from . import bisecting
from .bisect_search import Place, Search
from .shell import run_for
from .texts import nbytes

if TYPE_CHECKING:
    from deltavc.bisect.marks import Verdict
    from deltavc.bisect.result import Evaluation
    from deltavc.bisect.workbench import Brought, Workbench
    from deltavc.version import Version

_SKIP = 125
_ABORTS = 128
_CANNOT_RUN = (126, 127)
"""What a shell ends with when the command is no program, or there is none of this name."""


def run_to_the_end(search: Search, command: Sequence[str], place: Place) -> None:
    """Try versions until the first bad one is found, and say so."""
    from deltavc.bisect.search import Try

    session = search.placing(place)
    found = search.standing(session)
    search.warn(found)
    evaluations: list[Evaluation] = []
    with ExitStack() as stack:
        while isinstance(found.choice, Try):
            if not evaluations:
                workbench = stack.enter_context(closing(search.workbench(session)))
                test = _Test(search, workbench, command[0] if len(command) == 1 else command, session.marks.good)
            for line in bisecting.trying(search.trying(found, None)):
                search.out.note(line)
            evaluation = search.bisector.evaluate(workbench, found.choice.version, test)
            session, found = search.record(session, evaluation)
            evaluations.append(evaluation)
    search.conclude(session, found, evaluations)


class _Test:
    """Runs the command for one version after another, and takes its exit code as git does."""

    def __init__(self, search: Search, workbench: Workbench, command: str | Sequence[str], good: Sequence[str]) -> None:
        self._search = search
        self._workbench = workbench
        self._command = command
        self._good = good
        self._first = True

    def __call__(self, brought: Brought, version: Version) -> Verdict:
        """Raises EvaluationFailed if the exit code says nothing."""
        started = time.perf_counter()
        code = self._run(version)
        seconds = time.perf_counter() - started
        if self._first and code in _CANNOT_RUN:
            self._check_that_it_runs(version, code)
        self._first = False
        _check(version, code)
        verdict: Verdict = "good" if code == 0 else "skip" if code == _SKIP else "bad"
        moved = f"moved in {brought.seconds:.2f} s, {nbytes(brought.fetched_bytes)} fetched, tried in {seconds:.2f} s"
        self._search.out.note(bisecting.evaluated(version, verdict, moved))
        return verdict

    def _run(self, version: Version) -> int:
        return run_for(self._command, version.id, version.step, str(self._workbench.path))

    def _check_that_it_runs(self, version: Version, code: int) -> None:
        """Tell a command that is not there from one that says that a version is bad: for a good one, too, it is not."""
        from deltavc.bisect.bisector import UNREACHABLE
        from deltavc.errors import EvaluationFailed

        (good,) = self._search.bisector.versions(self._good[:1])
        try:
            self._workbench.move(good.id)
        except UNREACHABLE as error:
            reason = f"whether it can be run at all cannot be told, since the good {good} cannot be had"
            raise EvaluationFailed(version.id, code, reason) from error
        again = self._run(good)
        _check(good, again)
        if again == code:
            raise EvaluationFailed(version.id, code, f"so it does for the good {good}; it seems that it cannot be run")


def _check(version: Version, code: int) -> None:
    from deltavc.errors import EvaluationFailed

    if code < 0:
        raise EvaluationFailed(version.id, code, "a signal ended it")
    if code >= _ABORTS:
        raise EvaluationFailed(version.id, code, "that is neither good nor bad; 0 is good, 125 is skip, to 127 is bad")
