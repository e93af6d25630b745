"""Reindexing: the database filled anew from the bucket alone, for everybody at one moment."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from deltavc.access import Access
from deltavc.lineage.history import Totals
from deltavc.lineage.rebuild import rebuild
from deltavc.store.files import temporary_directory


def reindex(access: Access, repository_id: str, progress: Callable[[str, int, int], None]) -> Totals:
    """Replace all that the database knows by what the bucket says; what it holds then.

    Raises:
        CorruptObject, MissingObject: a record in the bucket is damaged or gone; the database is as it was.
        StoreError; DatabaseUnavailable: the same; also when there is no room where temporary files lie.
        DatabaseNeeded: the repository was opened without one.
    """
    directory = temporary_directory("deltavc-reindex-")
    try:
        rebuild(access.index, repository_id, directory, progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return access.index.totals()
