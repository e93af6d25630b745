"""What readers and writers need of a repository: its objects, its refs and their index."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.freshness import Freshness
from deltavc.lineage.index import Index
from deltavc.lineage.refs import Refs
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers
from deltavc.walk import Objects


@dataclass(frozen=True, slots=True)
class Access:
    """The parts of an open repository. `author` is who its commits and ref moves are by."""

    store: Store
    transfers: Transfers
    objects: Objects
    refs: Refs
    index: Index
    freshness: Freshness
    author: str
