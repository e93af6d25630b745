"""Errors of what somebody else did first."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class Conflict(DeltavcError):
    """Somebody else changed what this operation was based on; nothing was changed by it."""

    exit_code = 11


@dataclass(eq=False)
class BranchMoved(Conflict):
    """Another writer advanced the branch between reading it and moving it."""

    branch: str
    expected: str | None
    found: str | None

    kind = "branch_moved"
    hint = "See what is there (`deltavc log`), then do it again, or on another branch; a writer goes there with w.move."

    def __str__(self) -> str:
        found = self.found if self.found else "no version"
        expected = self.expected if self.expected else "no version"
        return f"branch {self.branch!r} is at {found}, not at {expected} as this operation expected"


@dataclass(eq=False)
class RefExists(Conflict):
    """A branch or tag of this name exists. Tags never move."""

    what: str
    name: str
    at: str

    kind = "ref_exists"
    hint = "Choose another name, or delete this one first."

    def __str__(self) -> str:
        return f"{self.what} {self.name!r} exists already, at {self.at}"


@dataclass(eq=False)
class DirectoryInUse(Conflict):
    """Another process keeps this directory at a version."""

    path: str
    holder: str

    kind = "directory_in_use"
    hint = "Follow into another directory, or stop the process that follows into this one."

    def __str__(self) -> str:
        return f"{self.path} is kept at a version by {self.holder} already"


@dataclass(eq=False)
class HistoriesDiffer(Conflict):
    """A branch or tag of two repositories went different ways, so that one cannot follow the other.

    what: branch or tag. there, here: the versions it is at in the repository copied from, and in the one copied to.
    """

    what: str
    name: str
    there: str
    here: str
    url: str

    kind = "histories_differ"
    hint = (
        "No ref was moved. Copy into another repository, name the refs to copy without this one, or delete it where it "
        "is copied to, which keeps its versions."
    )

    def __str__(self) -> str:
        where = f"is at {self.here} in {self.url}, where the one to copy never was"
        return f"{self.what} {self.name!r} {where}; that is at {self.there}"
