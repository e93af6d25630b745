"""Live tensors on which one version after another is tried: moved by deltas, proven, and put back in the end.

The caller's own are at a version, go from one to the next, and return to where they were. Where the caller has none,
the first one that is tried is checked out, and moved from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from deltavc import reader
from deltavc.access import Access
from deltavc.errors import ForeignWrite, LayoutMismatch, ReplicaUnusable, WrongWeights
from deltavc.lineage.plan import plan
from deltavc.lineage.replan import replanning
from deltavc.replica import Replica
from deltavc.replica.opening import open_replica

WRITTEN = (
    "If is_bad wrote to the tensors that it was given, what it found is worth nothing. A model in training mode may do "
    "so: call its eval() first."
)

Live: TypeAlias = Mapping[str, Tensor] | torch.nn.Module


class Borrowed:
    """The caller's live tensors, as a replica moves them.

    Args:
        live: tensors at a version, which is found out; or a replica of such, which stays open.

    Raises:
        UnknownRef: they are no version, so that they could not be put back.
    """

    def __init__(self, access: Access, live: Live | Replica) -> None:
        self._replica = live if isinstance(live, Replica) else open_replica(access, live, None, None, ())
        self._given = live
        self._before = self._replica.version
        self._proven = False

    def move(self, version: str) -> Any:
        """Raises LayoutMismatch when they cannot hold the version, ForeignWrite when somebody wrote to them."""
        _move(self._replica, version)
        return self._given

    def prove(self) -> None:
        """Raises WrongWeights."""
        _prove(self._replica)
        self._proven = True

    def close(self) -> None:
        """Move them back to the version that they were at, whatever was written to them.

        What prevents it is raised, with a note that says what they are left at.
        """
        try:
            self._put_back()
        except BaseException as error:
            error.add_note(f"The tensors given as into= were at {self._before}, and {self._left()}.")
            raise
        finally:
            if self._replica is not self._given:
                self._replica.close()

    def _put_back(self) -> None:
        try:
            if not self._proven:
                self._replica.verify()
            _move(self._replica, self._before)
        except (WrongWeights, ForeignWrite, ReplicaUnusable):
            self._replica.rewrite(self._before)

    def _left(self) -> str:
        if self._replica.state == "unusable":
            return "hold no version now"
        return f"are at {self._replica.version} now"


class Own:
    """Tensors in main memory that nobody else has."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._tensors: Mapping[str, Tensor] = {}
        self._replica: Replica | None = None

    def move(self, version: str) -> Mapping[str, Tensor]:
        """Raises ForeignWrite when somebody wrote to them."""
        if self._replica is not None:
            try:
                _move(self._replica, version)
                return self._tensors
            except LayoutMismatch:
                self.prove()
                self.close()
        self._tensors = {}
        record = self._access.index.version(version).record
        index, objects = self._access.index, self._access.objects
        self._tensors = replanning(
            index, lambda: reader.checkout(record, plan(index, version, forward_only=True), objects)
        )
        self._replica = open_replica(self._access, self._tensors, version, None, ())
        return self._tensors

    def prove(self) -> None:
        """Raises WrongWeights."""
        if self._replica is not None:
            _prove(self._replica)

    def close(self) -> None:
        """Let go of them."""
        if self._replica is not None:
            self._replica.close()
            self._replica = None


def _move(replica: Replica, version: str) -> None:
    """Move by a delta, however large it is."""
    try:
        if replica.fits(version):
            replica.stage(version).wait()
            replica.apply()
        else:
            replica.rewrite(version)
    except (ForeignWrite, WrongWeights) as error:
        error.add_note(WRITTEN)
        raise


def _prove(replica: Replica) -> None:
    try:
        replica.verify()
    except WrongWeights as error:
        error.add_note(WRITTEN)
        raise
