"""Repair: records written again from the database, drops for edges that cannot be walked, the database filled anew.

What was lost for good is not made up: a pack or a file without a copy stays lost, and so does a record that the
database does not know either. A drop is all that is written about an edge; it can be taken back by deleting it as long
as clean-up has not come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from deltavc import canonical
from deltavc.access import Access
from deltavc.errors import BadMetadata, BadPayload
from deltavc.lineage import contents
from deltavc.lineage.drops import DAMAGED, DropRecord
from deltavc.lineage.fields import now
from deltavc.lineage.records import RefEntry
from deltavc.upkeep.composing import Composer
from deltavc.upkeep.fsck_report import Problem

_RECORD = re.compile(r"(versions|layouts|edges)/[0-9a-f]{2,64}/(?P<id>[0-9a-f]{64})\.json")
_DROP = re.compile(r"drops/(?P<target>[0-9a-f]{64})/(?P<edge>[0-9a-f]{64})\.json")
_HEALED = frozenset(f"{how}_{what}" for how in ("damaged", "missing") for what in ("version", "layout", "edge", "ref"))


def heal(access: Access, problems: Iterable[Problem]) -> set[str]:
    """Write damaged and missing records again that the database still knows. Returns their keys.

    Raises:
        StoreError, DatabaseUnavailable
    """
    healed: set[str] = set()
    for problem in problems:
        if problem.kind not in _HEALED:
            continue
        body = _known_body(access, problem.key)
        if body is not None:
            access.store.put(problem.key, body)
            healed.add(problem.key)
    return healed


def drop(access: Access, edges: Iterable[tuple[str, str]]) -> None:
    """Record drops of edges that cannot be walked, given as target and id, and let the database forget them.

    Raises:
        StoreError, DatabaseUnavailable
    """
    dropped = list(edges)
    for target, edge in dropped:
        record = DropRecord(edge, target, access.author, now(), DAMAGED)
        access.store.create(record.key, record.body)  # one that is there already does as well
    access.index.drop([edge for _, edge in dropped])


def redrop(access: Access, problems: Iterable[Problem]) -> None:
    """Write damaged drops again. Raises StoreError."""
    for problem in problems:
        if problem.kind == "damaged_drop" and (found := _DROP.fullmatch(problem.key)):
            record = DropRecord(found["edge"], found["target"], access.author, now(), DAMAGED)
            access.store.put(record.key, record.body)


def lead_forwards(access: Access, detours: Mapping[str, str]) -> None:
    """Write edges to versions that only walks back lead to, each from a version that they can be reached from.

    Raises:
        Corruption: something on the way is damaged; StoreError, DatabaseUnavailable
    """
    if detours:
        access.index.refresh()
    with Composer(access) as composer:
        for version, start in detours.items():
            composer.compose(start, version)


def _known_body(access: Access, key: str) -> bytes | None:
    """A record as the database knows it, if that is what the key says."""
    if key.startswith("refs/"):
        body = contents.entry_body(access.index, key)
        return body if body is not None and _is_entry(body, key) else None
    found = _RECORD.fullmatch(key)
    if found is None:
        return None
    readers: dict[str, Callable[..., bytes | None]] = {
        "versions": contents.version_body,
        "layouts": contents.layout_body,
        "edges": contents.edge_body,
    }
    try:
        body = readers[found[1]](access.index, found["id"])
    except (BadMetadata, BadPayload):  # a row that no record could have made
        return None
    return body if body is not None and canonical.content_id(body) == found["id"] else None


def _is_entry(body: bytes, key: str) -> bool:
    return RefEntry.parse(body).key == key
