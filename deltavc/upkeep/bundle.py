"""Writing bundles: when so much has happened since the last one that it is worth while."""

from __future__ import annotations

import logging

from deltavc.access import Access
from deltavc.errors import ObjectMissing, StoreDenied
from deltavc.lineage import bundles, export

log = logging.getLogger(__name__)

MIN_MOVES = 256
"""Moves of refs that are not worth a bundle: this many are read one by one in a second or two."""

GROWTH = 0.25
"""A new bundle, which holds everything, is written when there are this many moves more than in the last one, as a
share of those: so a repository that grows writes each record into five bundles in the long run, not into every one."""


def is_due(access: Access) -> bool:
    """Whether `write` would write. Raises StoreError, DatabaseUnavailable."""
    covered = max((_covered(access, key) for key in _there(access)), default=0)
    return export.num_moves(access.index) - covered >= max(MIN_MOVES, GROWTH * covered)


def write(access: Access) -> list[str]:
    """Write everything that the database knows into bundles, and remove the older ones.

    Returns:
        Keys of the new ones.

    Raises:
        StoreError, DatabaseUnavailable: what was there is still there.
    """
    old = _there(access)
    made: list[str] = []
    for body in bundles.pack(export.records(access.index), export.num_moves(access.index)):
        made.append(bundles.bundle_key(body))
        access.store.put(made[-1], body)
    try:
        for key in set(old) - set(made):
            access.store.delete(key)
    except StoreDenied as error:
        log.warning("older bundles stay, which harms nothing: %s", error)
    return made


def _there(access: Access) -> list[str]:
    return [item.key for item in access.store.list(bundles.BUNDLES)]


def _covered(access: Access, key: str) -> int:
    try:
        return bundles.entries_of(access.store.get(key, 0, bundles.HEAD_BYTES))
    except ObjectMissing:
        return 0
