"""Errors of training runs that a trainer's callback commits."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class RunError(DeltavcError):
    """A run that cannot go on as it was started."""


@dataclass(eq=False)
class BranchTaken(RunError):
    """A run begins with other weights, or at another step, than the version that it would be a child of.

    at, at_step: that version. step: where the run begins.
    """

    branch: str
    at: str
    at_step: int | None
    step: int

    kind = "branch_taken"
    hint = (
        "Resume with trainer.train(resume_from_checkpoint=callback.checkpoint()), or commit another run to another "
        "branch: DeltavcCallback(..., branch=NAME)."
    )

    def __str__(self) -> str:
        here = "other weights" if self.step == self.at_step else f"step {self.step}"
        step = "a version without a step" if self.at_step is None else f"step {self.at_step}"
        return f"branch {self.branch!r} goes on from {step} ({self.at}), and this run begins with {here}"


@dataclass(eq=False)
class RolledBackTooOften(RunError):
    """A run was rolled back to one version again and again; branch and model are there."""

    branch: str
    to: str
    step: int | None
    times: int
    reason: str

    kind = "rolled_back_too_often"
    hint = (
        "Something is wrong with more than a batch: look at the steps that were rolled back (`deltavc log --all`, "
        "`deltavc reflog`), change the run, and resume it."
    )

    def __str__(self) -> str:
        return f"branch {self.branch!r} was rolled back to step {self.step} {self.times} times in a row: {self.reason}"
