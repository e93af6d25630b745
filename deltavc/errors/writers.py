"""Errors of ways to weights, and of writers."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


@dataclass(eq=False)
class NoPath(DeltavcError):
    """No chain of edges leads to the version's weights."""

    version: str

    kind = "no_path"
    hint = (
        "They were given up, or are lost; its lineage is kept. Take a version near it: `deltavc log` shows them, "
        "and `deltavc verify REF` says whether one is whole."
    )

    def __str__(self) -> str:
        return f"version {self.version} has no weights that can be reached"


@dataclass(eq=False)
class WeightsTooLarge(DeltavcError):
    """A version's weights would not fit into this machine's memory; nothing was read."""

    nbytes: int
    has: int

    kind = "weights_too_large"
    hint = "Check out some of the tensors (tensors=), or use a machine with more memory; `deltavc show` tells the size."

    def __str__(self) -> str:
        return f"the weights take {self.nbytes} bytes, and this machine has {self.has} bytes of memory"


class WriterError(DeltavcError):
    """A writer that cannot take this call."""


@dataclass(eq=False)
class WriterBusy(WriterError):
    """max_in_flight commits are on their way and on_busy is "error"."""

    branch: str
    in_flight: int

    kind = "writer_busy"
    hint = 'Wait for a commit to finish, or open the writer with on_busy="wait" or "coalesce".'

    def __str__(self) -> str:
        return f"the writer of branch {self.branch!r} has {self.in_flight} commits on their way already"


@dataclass(eq=False)
class WriterClosed(WriterError):
    """The writer was closed."""

    branch: str

    kind = "writer_closed"
    hint = "Open another with repo.writer(branch)."

    def __str__(self) -> str:
        return f"the writer of branch {self.branch!r} is closed"


@dataclass(eq=False)
class CommitAbandoned(WriterError):
    """An earlier commit of this writer failed, and this one was built on it."""

    branch: str
    reason: str

    kind = "commit_abandoned"
    hint = "The writer is back at the last version that was committed; commit the state again."

    def __str__(self) -> str:
        return f"a commit to branch {self.branch!r} was abandoned because one before it failed: {self.reason}"


@dataclass(eq=False)
class CommitInDoubt(WriterError):
    """The store did not answer whether the commit landed."""

    branch: str
    version: str
    reason: str

    kind = "commit_in_doubt"
    hint = "The writer settles it at its next call; `deltavc log` shows whether the version is there."

    def __str__(self) -> str:
        return f"whether version {self.version} was committed to branch {self.branch!r} is not known: {self.reason}"


@dataclass(eq=False)
class TooLate(WriterError):
    """So much time went by since the first upload that clean-up may be about to take it; nothing was published.

    what: what was to be published. age, limit: in seconds, by the store's clock.
    """

    what: str
    age: float
    limit: float

    kind = "too_late"
    hint = "Do it again: everything is uploaded anew. If it always takes so long, set a longer grace: `deltavc policy`."

    def __str__(self) -> str:
        return (
            f"{self.what} was not published: its uploads began {self.age:.0f} seconds ago, "
            f"and after {self.limit:.0f} clean-up might take them first"
        )
