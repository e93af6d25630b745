"""The line of versions that one run makes on a branch: where it resumes, what is there already, and the way back.

    branch   0 ─── 1 ─── 2 ─── 3 ─── 4 ─── 5 ─── 6      the run was killed while 7 was on its way
             S                       S           ▲
                                     │           └─ the branch stays here
                                     └─ the newest version that holds the trainer's state: the run resumes from it

The run computes 5 and 6 again. Each is compared, by fingerprint, with the version that is there: where they are equal
there is nothing to commit, followers of the branch see nothing, and it is proven that the run is the same. At the first
that differs, the branch is moved back to the last that did not, with the reason, and the run goes on from there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Set
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

import torch

from deltavc.errors import (
    BranchMoved,
    BranchTaken,
    CommitAbandoned,
    CommitInDoubt,
    DeltavcError,
    StoreError,
    TooLate,
)
from deltavc.integrations.transformers_start import Start, head_of, holds, named, start_before

if TYPE_CHECKING:
    from deltavc.files import FileInput
    from deltavc.repo import Repo
    from deltavc.version import Version
    from deltavc.writer import Writer

log = logging.getLogger(__name__)

OnError = Literal["raise", "log"]

PASSING = (StoreError, TooLate, CommitAbandoned, CommitInDoubt)
"""What a commit fails with that the next one may not fail with."""


class Line:
    """The versions of one run, in the making. One process has it: of many ranks, the first."""

    def __init__(
        self, repo: Repo, branch: str, needed: Set[str], on_error: OnError, writer_options: Mapping[str, Any]
    ) -> None:
        self._repo = repo
        self._branch = branch
        self._needed = needed
        self._on_error = on_error
        self._options = dict(writer_options)
        self._most = int(self._options.get("max_in_flight", 1))
        self._writer: Writer | None = None
        self._at: Version | None = None
        self._after: deque[Version] = deque()
        self._pending: deque[tuple[int, bool, Future[Version]]] = deque()
        self.lacks_state = False
        """Whether a commit that held the trainer's state failed, and the next one should hold it."""

    @property
    def at(self) -> str:
        """The id of the version that the run is at."""
        assert self._at is not None  # it has begun, and is not the branch's first
        return self._at.id

    def begin(self, start: Start | None, step: int, model: torch.nn.Module) -> bool:
        """Go on from where the branch is, or from `start`. Returns whether the run is the branch's first.

        Raises:
            BranchTaken: the live weights are not that version, or the run begins at another step.
            BranchMoved: somebody moved the branch since `start` was looked up.
        """
        head = head_of(self._repo, self._branch)
        if head is None:
            return True
        start = start or Start(head)
        expected = start.after[-1] if start.after else start.at
        if expected.id != head.id:
            raise BranchMoved(self._branch, expected.id, head.id)
        if start.at.step != step or not self.holds(model, start.at):
            raise BranchTaken(self._branch, start.at.short_id, start.at.step, step)
        self._at, self._after = start.at, deque(start.after)
        return False

    def holds(self, model: torch.nn.Module, version: Version) -> bool:
        """Whether a live model is exactly a version."""
        return holds(self._repo, model, version, self._options.get("dtype"))

    def has(self, step: int, model: torch.nn.Module) -> bool:
        """Whether there is nothing to commit at this step, since it was made before the run was resumed.

        A step that the branch passes over was rolled back then, or not due. If the live weights are not those of the
        branch's version of this step, the branch is moved back to the last that was equal, and the answer is no.

        Raises:
            BranchMoved: somebody else has moved it since the run began.
        """
        if not self._after:
            return False
        following = self._after[0]
        if following.step is not None and following.step > step:
            return True
        if following.step == step and self.holds(model, following):
            self._at = self._after.popleft()
            return True
        assert self._at is not None  # nothing is after nothing
        reason = f"step {step} came out otherwise than before the run was resumed"
        log.warning("%s: %r goes back to step %s, and on from there", reason, self._branch, self._at.step)
        self._go_back(self._at, reason)
        return False

    def ready(self) -> None:
        """Wait as long as the next commit would have to, and hear how those before it ended.

        Raises:
            what one of them failed with, unless it is to be logged. BranchMoved: somebody else moved the branch.
        """
        waits = self._options.get("on_busy", "wait") == "wait"
        while self._pending and (self._pending[0][2].done() or (waits and len(self._pending) >= self._most)):
            self._hear_one()

    def commit(
        self,
        step: int,
        model: torch.nn.Module,
        metrics: Mapping[str, Any],
        files: Mapping[str, FileInput],
    ) -> None:
        """Commit a step in the background.

        Raises:
            what `commit_async` raises, unless the store failed and that is to be logged.
        """
        has_state = files.keys() >= self._needed
        try:
            writer = self._open_writer()
            if writer is None:
                self._at = self._first(model, step, metrics, files)
                return
            self._pending.append((step, has_state, writer.commit_async(model, step=step, metrics=metrics, files=files)))
        except PASSING as error:
            self._failed(step, has_state, error)
        else:
            self.lacks_state = self.lacks_state and not has_state

    def roll_back(self, step: int, asked: int, to: str | None, reason: str) -> Version:
        """Move the branch back, to the newest version that holds the trainer's state and is of step `asked` or before.

        With `to`, it is the newest one at or before `to`. At a step that was rolled back before the run resumed,
        the branch is left alone: it has gone on from there.

        Returns:
            The version. The live model is the caller's to move.

        Raises:
            UnknownRef: there is none; or `to` names none.
        """
        while self._pending:
            self._hear_one()
        assert self._at is not None  # a step was committed, or compared
        committed = self._at.step == step
        if self._after and not committed:
            return start_before(self._repo, self._at, self._needed).at
        wanted = self._at if to is None else named(self._repo, to, self._branch)
        if committed and wanted.id == self._at.id:
            wanted = self._repo.version(f"{self._at.id}~1")
        target = start_before(self._repo, wanted, self._needed, asked if to is None else None).at
        self._go_back(target, reason)
        return target

    def close(self) -> None:
        """Wait for what is on its way. Raises what it failed with, unless that is to be logged."""
        writer, self._writer = self._writer, None
        try:
            while self._pending:
                self._land_one()
        finally:
            for _, _, future in self._pending:
                future.exception()  # abandoned with the one that failed, which is raised
            self._pending.clear()
            if writer is not None:
                writer.close()

    def _go_back(self, target: Version, reason: str) -> None:
        """Move the branch. Raises BranchMoved where it is not as this run left or found it."""
        writer = self._open_writer()
        assert writer is not None  # there is a version, so there is a branch
        writer.rollback(target.id, reason)
        self._at = target
        self._after.clear()

    def _open_writer(self) -> Writer | None:
        """The writer; None for the first version of a branch beside others, which has no parent to be a change of."""
        if self._writer is None:
            if self._at is None and self._repo.branches():
                return None
            self._writer = self._repo.writer(self._branch, **self._options)
            head = self._after[-1] if self._after else self._at
            expected = None if head is None else head.id
            if self._writer.version != expected:
                found = self._writer.version
                self._writer.close()
                self._writer = None
                raise BranchMoved(self._branch, expected, found)
        return self._writer

    def _first(
        self, model: torch.nn.Module, step: int, metrics: Mapping[str, Any], files: Mapping[str, FileInput]
    ) -> Version:
        told: dict[str, Any] = {name: self._options[name] for name in ("codec", "dtype") if name in self._options}
        return self._repo.commit(model, self._branch, parents=[], step=step, metrics=metrics, files=files, **told)

    def _hear_one(self) -> None:
        try:
            self._land_one()
        except CommitInDoubt as error:
            log.warning("%s", error)  # the writer settles it at its next call, which fails if it cannot

    def _land_one(self) -> None:
        step, has_state, future = self._pending.popleft()
        try:
            self._at = future.result()
        except PASSING as error:
            self._failed(step, has_state, error)

    def _failed(self, step: int, has_state: bool, error: DeltavcError) -> None:
        self.lacks_state = self.lacks_state or has_state
        if self._on_error == "raise":
            raise error
        log.warning("the commit of step %d failed, and the run goes on: %s", step, error)
