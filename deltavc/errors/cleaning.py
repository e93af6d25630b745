"""Errors of clean-up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from deltavc.errors.base import DeltavcError
from deltavc.errors.inputs import InputError


@dataclass(eq=False)
class CleanUpRefused(DeltavcError):
    """Clean-up is not sure that nobody needs what it would take; nothing was dropped or deleted by it."""

    reason: str

    kind = "clean_up_refused"
    hint = "Run `deltavc fsck`, which says what is wrong and how to repair it; then clean up again."

    def __str__(self) -> str:
        return f"clean-up took nothing: {self.reason}"


@dataclass(eq=False)
class GraceTooShort(InputError):
    """Clean-up was asked to delete what writers may still be about to name. Both in seconds."""

    asked: float
    grace: float

    kind = "grace_too_short"
    hint = (
        "Writers count on the repository's grace: what they uploaded may wait for half of it. "
        "Set a shorter one first, which they then keep to: `deltavc policy --grace`."
    )

    def __str__(self) -> str:
        grace, asked = (timedelta(seconds=seconds) for seconds in (self.grace, self.asked))
        return f"the repository's grace is {grace}; what is only older than {asked} may be in use"
