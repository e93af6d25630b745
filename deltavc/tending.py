"""Tending: what keeps a repository quick to read and its database right. None of it changes a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltavc.checks import Checks
from deltavc.lineage.history import Totals
from deltavc.store.transfers import DEFAULT_MEMORY

if TYPE_CHECKING:
    from deltavc.upkeep.compact import Compacted, Progress
    from deltavc.upkeep.ways import Bounds


class Tending(Checks):
    """The part of a `Repo` that tends it."""

    def compact(
        self,
        bounds: Bounds | None = None,
        *,
        dry_run: bool = False,
        memory: int | None = None,
        progress: Progress | None = None,
    ) -> Compacted:
        """Write edges that skip, and snapshots, so that every version can be reached within bounds; bundle the records.

        Runs beside writers and readers. It may be interrupted: what was written is of use, and the next run goes on.

        Args:
            bounds: what a way to a version may take; None for `Bounds()`.
            dry_run: only count what would be written, with sizes estimated from above.
            memory: bytes it may take; None for half of what the machine has. It holds two versions, in temporary files
                where they do not fit.
            progress: called with what is being done, how much of it is done, and how much there is (0: not known).

        Raises:
            StoreError, DatabaseUnavailable, DatabaseNeeded
        """
        from deltavc.held import machine_memory
        from deltavc.upkeep.compact import compact
        from deltavc.upkeep.ways import Bounds

        tell = progress or (lambda doing, done, total: None)
        return compact(
            self._access(memory or machine_memory() // 2), bounds or Bounds(), dry_run=dry_run, progress=tell
        )

    def reindex(self, *, progress: Progress | None = None) -> Totals:
        """Fill the database anew from the bucket alone, refs included.

        Who reads it meanwhile sees the old rows, or waits, and then the new ones. If it is interrupted, the database is
        as it was.

        Args:
            progress: as for `compact`.

        Returns:
            What the database holds now.

        Raises:
            CorruptObject, MissingObject: a record in the bucket is damaged or gone; `fsck` tells more.
            StoreError, DatabaseUnavailable, DatabaseNeeded
        """
        from deltavc.upkeep.reindex import reindex

        return reindex(self._access(DEFAULT_MEMORY), self.id, progress or (lambda doing, done, total: None))
