"""Errors of replicas."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class ReplicaError(DeltavcError):
    """A replica that cannot take this call, or did not move."""


@dataclass(eq=False)
class NothingStaged(ReplicaError):
    """`apply` without a version that was staged for it."""

    version: str

    kind = "nothing_staged"
    hint = "Call stage(ref) first, or move(ref), which does both. What was staged is used up by one apply."

    def __str__(self) -> str:
        return f"nothing is staged; the replica is at version {self.version}"


class StageCancelled(ReplicaError):
    """Staging was cancelled before it was done."""

    kind = "stage_cancelled"
    hint = "The live weights were not touched. Stage again when you want to move."

    def __str__(self) -> str:
        return "staging was cancelled; nothing is staged"


@dataclass(eq=False)
class StagingTooSmall(ReplicaError):
    """The change to a version does not fit into the staging memory."""

    has: int
    needs: int

    kind = "staging_too_small"
    hint = (
        "Open the replica with staging_bytes= of that size, or, where serving can stop for as long as a checkout "
        "takes, use move(ref, allow_long_pause=True)."
    )

    def __str__(self) -> str:
        return f"the change does not fit into {self.has} bytes of staging memory; {self.needs} are enough"


@dataclass(eq=False)
class ForeignWrite(ReplicaError):
    """Live lanes are not what the replica's version has there: somebody else wrote to them."""

    version: str
    tensors: tuple[str, ...]

    kind = "foreign_write"
    hint = (
        "Nothing was written. Find who writes to these tensors; to bring them back to a version, "
        "use move(ref, allow_long_pause=True)."
    )

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.tensors[:5])) + (" and others" if len(self.tensors) > 5 else "")
        return f"live tensors are not as version {self.version} has them: {shown}"


@dataclass(eq=False)
class HookFailed(ReplicaError):
    """on_apply raised; the old values went back."""

    version: str
    reason: str

    kind = "hook_failed"
    hint = "The replica is at the version it was at, and on_apply ran again for that one."

    def __str__(self) -> str:
        return f"on_apply failed for version {self.version}, which was taken back: {self.reason}"


@dataclass(eq=False)
class ReplicaUnusable(ReplicaError):
    """The live weights may be no version at all."""

    reason: str

    kind = "replica_unusable"
    hint = "Do not serve from it. move(ref, allow_long_pause=True) writes every weight anew and proves it."

    def __str__(self) -> str:
        return f"the replica is unusable: {self.reason}"


class ReplicaClosed(ReplicaError):
    """The replica was closed."""

    kind = "replica_closed"
    hint = "Open another with repo.replica(model)."

    def __str__(self) -> str:
        return "the replica is closed"
