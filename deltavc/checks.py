"""Checks: what can be asked of a repository about its own health, and of a version about its truth."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from deltavc.lookup import Lookup
from deltavc.store.transfers import DEFAULT_MEMORY

if TYPE_CHECKING:
    from deltavc.access import Access
    from deltavc.upkeep.audit import Audit
    from deltavc.upkeep.fsck_full import Progress
    from deltavc.upkeep.fsck_report import Report
    from deltavc.upkeep.verify import Verification
    from deltavc.upkeep.verify_files import Match
    from deltavc.weights.state import State


class Checks(Lookup):
    """The part of a `Repo` that checks. None of it changes anything, but for `fsck(repair=True)`."""

    id: str

    def fsck(
        self,
        full: bool = False,
        *,
        repair: bool = False,
        anew: bool = False,
        memory: int | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Check that everything is there and is what it says it is. Runs beside writers.

        Args:
            full: also read every byte: every frame, every version's fingerprint by walking each edge once, every file.
                Results hold for a week, so that one that was interrupted goes on where it was.
            repair: write damaged records again from the database, drop edges that cannot be walked, so that others are
                taken, and fill the database anew. The report says which versions' weights are lost.
            anew: rely on no earlier full check.
            memory: bytes that a full check may take; None for half of what the machine has.
            progress: called with what is being done, how much of it is done, and how much there is.

        Returns:
            A report: `.ok`, `.problems`, `.lost`, and what was counted.

        Raises:
            StoreError: the store could not be asked. DatabaseUnavailable.
            UnknownCodec: a frame was written by a newer release.
        """
        from deltavc.upkeep.fsck import fsck

        access = self._access(DEFAULT_MEMORY)
        return fsck(access, self.id, full=full, repair=repair, anew=anew, memory=memory, progress=progress)

    def verify(
        self,
        ref: str = "main",
        *,
        weights: bool = True,
        memory: int = DEFAULT_MEMORY,
        progress: Progress | None = None,
    ) -> Verification:
        """Prove one version: its id and those of all its ancestors, its objects, its files, its weights.

        Args:
            weights: walk a way to it and compute every tensor's fingerprint; without, only what edges tell is proven.
            memory: bytes it may take. Tensors are walked in groups that fit.
            progress: as for `fsck`.

        Returns:
            What was proven: `.ok`, `.problems`, and what was looked at.

        Raises:
            UnknownRef, AmbiguousRef; StoreError, DatabaseUnavailable, UnknownCodec
        """
        from deltavc.upkeep.verify import verify

        return verify(self._access(memory), self.resolve(ref), weights=weights, memory=memory, progress=progress)

    def match(self, state: State, against: str = "main") -> Match:
        """Say whether a state (a mapping, a module, a checkpoint's path) holds exactly a version, and what differs.

        A checkpoint's other files are compared with those of the same names that the version keeps.

        Raises:
            BadState, UnsupportedDtype, BadCheckpoint: the state cannot be read.
            UnknownRef, AmbiguousRef, NoPath; Corruption: records of the version are damaged.
        """
        from deltavc.upkeep.verify_files import match

        return match(self._access(DEFAULT_MEMORY), state, self.resolve(against))

    def audit(self, ref: str = "main", *, weights: bool = False, progress: Progress | None = None) -> Audit:
        """Gather all there is to say about one version: who, when, from what, what happened to it, what is proven.

        Args:
            weights: walk a way to it too, as `verify` does.

        Raises:
            UnknownRef, AmbiguousRef; DatabaseNeeded; StoreError, DatabaseUnavailable, UnknownCodec
        """
        from deltavc.upkeep.audit import audit

        version = self.resolve(ref)
        return audit(self._access(DEFAULT_MEMORY), version, self.verify(version, weights=weights, progress=progress))

    @abstractmethod
    def _access(self, memory: int) -> Access: ...
