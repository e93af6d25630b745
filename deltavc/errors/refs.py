"""Errors of names: refs that are unknown, ambiguous or not allowed."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class RefError(DeltavcError):
    """A ref that cannot be used as given."""


@dataclass(eq=False)
class UnknownRef(RefError):
    """Nothing in the repository answers to this ref."""

    ref: str
    reason: str = "no branch, tag or version answers to it"
    candidates: tuple[str, ...] = ()

    kind = "unknown_ref"
    hint = "List what there is with `deltavc log --all`, `deltavc branch` and `deltavc tag`."

    def __str__(self) -> str:
        near = f"; did you mean {', '.join(self.candidates)}?" if self.candidates else ""
        return f"unknown ref {self.ref!r}: {self.reason}{near}"


@dataclass(eq=False)
class AmbiguousRef(RefError):
    """Several things answer to this ref."""

    ref: str
    candidates: tuple[str, ...]

    kind = "ambiguous_ref"
    hint = "Write more of the id, or the full name of one of the candidates."

    def __str__(self) -> str:
        return f"ref {self.ref!r} is ambiguous: {', '.join(self.candidates)}"


@dataclass(eq=False)
class BadRefName(RefError):
    """A name that no branch or tag may have."""

    name: str
    reason: str

    kind = "bad_ref_name"
    hint = "Use letters, digits and any of - _ . / + with no part that starts with a dot."

    def __str__(self) -> str:
        return f"{self.name!r} cannot be the name of a branch or tag: {self.reason}"
