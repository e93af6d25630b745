"""Errors of ranks that work together."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class GroupError(DeltavcError):
    """A call that all ranks of a group make failed on all of them."""


@dataclass(eq=False)
class PeerFailed(GroupError):
    """A call of a group failed on another rank, and so on all; `failure` is that error's kind."""

    rank: int
    failure: str
    reason: str

    kind = "peer_failed"
    hint = "Nothing was moved or committed, on any rank. See the error on that rank."

    def __str__(self) -> str:
        return f"rank {self.rank} failed, and so the call on all ranks: {self.reason}"


@dataclass(eq=False)
class GroupBroken(GroupError):
    """Ranks of a group did not take part in a call within the time-out, or what they decide by is gone."""

    call: str
    ranks: tuple[int, ...]
    reason: str

    kind = "group_broken"
    hint = (
        "This rank has moved and committed nothing. If the others live, make the call again on all ranks; "
        "if not, start them and open the replica group, or the writer, anew."
    )

    def __str__(self) -> str:
        ranks = f"without rank {', '.join(map(str, self.ranks))}" if self.ranks else "without the others"
        return f"{self.call} cannot be done {ranks}: {self.reason}"
