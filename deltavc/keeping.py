"""Keeping: what a repository keeps, what it lets go of, and what it deletes."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING

from deltavc.lineage.settings import Policy, SettingsRef
from deltavc.lookup import Lookup
from deltavc.store.transfers import DEFAULT_MEMORY

if TYPE_CHECKING:
    from deltavc.access import Access
    from deltavc.upkeep.expire import Expiry, Progress
    from deltavc.upkeep.gc import Collected


class Keeping(Lookup):
    """The part of a `Repo` that cleans up: first what is not kept is let go of, and much later it is deleted."""

    _settings: SettingsRef
    _author: str

    def policy(self) -> Policy:
        """Which versions keep their weights, and the grace. Raises CorruptObject, MissingObject."""
        return self._settings.newest()

    def set_policy(self, policy: Policy, reason: str = "") -> None:
        """Set another policy, for everyone. Nothing is dropped before the next `expire`.

        Raises:
            BranchMoved: somebody else set one at the same time.
        """
        self._settings.set(policy, self._author, reason)

    def expire(
        self, *, dry_run: bool = False, memory: int = DEFAULT_MEMORY, progress: Progress | None = None
    ) -> Expiry:
        """Let versions lose their weights that the policy does not keep. They stay in the lineage.

        Where something that is kept was stored as a change of something that is not, it is stored anew first, and
        proven. Nothing is deleted: `gc` does that, after the grace. Runs beside writers and readers.

        Args:
            dry_run: only tell what would happen.
            memory: bytes that putting weights together may take; what does not fit lies in temporary files.
            progress: called with what is being done, how much of it is done, and how much there is.

        Raises:
            CleanUpRefused: a branch is at a version without weights, or listings disagree; nothing was dropped.
            Corruption: something on the way to a version that is kept is damaged or gone; nothing was dropped.
            TooLate, StoreError, DatabaseUnavailable, DatabaseNeeded
        """
        from deltavc.upkeep.expire import expire

        return expire(self._access(memory), self._settings, dry_run=dry_run, progress=progress)

    def gc(
        self, *, dry_run: bool = False, older_than: str | timedelta | None = None, progress: Progress | None = None
    ) -> Collected:
        """Delete what nothing needs any more and nobody can be about to need. Runs beside everything else.

        Args:
            dry_run: only tell what would be deleted.
            older_than: how long ago the last edge that needs it has to have been dropped, or it was stored if none ever
                did: 24h, 14d. Not less than the policy's grace, which None stands for.
            progress: as for `expire`.

        Raises:
            GraceTooShort, ValueError: of `older_than`.
            CleanUpRefused: listings disagree, a clock went backwards, or a branch has no weights.
            MissingObject, CorruptObject: something that is needed is gone or damaged. In all these cases nothing was
                deleted.
            StoreError: what was deleted until then was garbage. DatabaseUnavailable, DatabaseNeeded
        """
        from deltavc.upkeep.gc import gc

        access = self._access(DEFAULT_MEMORY)
        return gc(access, self._settings, dry_run=dry_run, older_than=older_than, progress=progress)

    @abstractmethod
    def _access(self, memory: int) -> Access: ...
