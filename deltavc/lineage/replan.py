"""Looking again: what a reader does when the way it planned is gone.

Clean-up may drop an edge that the database still has, and delete its packs a while later. Whoever meets such a hole
asks the bucket which edges there are now, and tries once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from deltavc.errors import DeltavcError, MissingObject, NoPath
from deltavc.lineage.index import Index

log = logging.getLogger(__name__)

_T = TypeVar("_T")


def replanning(index: Index, attempt: Callable[[], _T]) -> _T:
    """Make an attempt that plans a way and walks it; if something is missing, refresh the index and make another.

    Raises:
        whatever the second attempt raises, or the first one if the index could not be refreshed.
    """
    try:
        return attempt()
    except (MissingObject, NoPath) as error:
        log.info("%s; looking for another way", error)
        try:
            index.refresh()
        except DeltavcError as failure:
            log.warning("the index could not be refreshed: %s", failure)
            raise error from None
    return attempt()
