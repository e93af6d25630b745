"""Reindexing: the database filled anew from the bucket alone, for everybody at one moment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from deltavc.access import Access
from deltavc.lineage.history import Totals
from deltavc.lineage.rebuild import rebuild


def reindex(access: Access, repository_id: str, progress: Callable[[str, int, int], None]) -> Totals:
    """Replace all that the database knows by what the bucket says; what it holds then.

    Raises:
        CorruptObject, MissingObject: a record in the bucket is damaged or gone; the database is as it was.
        StoreError; DatabaseUnavailable: the same.
        DatabaseNeeded: the repository was opened without one.
    """
    with tempfile.TemporaryDirectory(prefix="deltavc-reindex-") as directory:
        rebuild(access.index, repository_id, Path(directory), progress)
    return access.index.totals()
