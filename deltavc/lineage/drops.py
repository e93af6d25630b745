"""Drops: records that an edge is no more, written before anything that the edge needs may go.

    edges/<target>/<edge>.json     how to get to a version
    drops/<target>/<edge>.json     not this way any more: who says so, when, and why

An edge with a drop is passed over by everyone who looks for a way, from the moment at which the drop is there.
Its packs stay for the repository's grace, for those who looked before. The records of an edge's target lie together,
so that whoever reads the edges of one version asks for their drops with one listing, and whoever reads those of
many lists `drops/` once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Set
from dataclasses import dataclass

from deltavc import canonical
from deltavc.errors import BadPayload, ObjectMissing
from deltavc.lineage.bucket import Bucket, listed_edges
from deltavc.lineage.fields import ID, match, moment, now, text
from deltavc.lineage.records import DROPS, EdgeRecord, drop_key, drops_prefix

EXPIRED = "expire"
"""Why an edge was dropped: no version that the policy keeps needs it."""

DAMAGED = "damaged"
"""Why an edge was dropped: what it needs is damaged or gone."""

UNCOMMITTED = "uncommitted"
"""Why an edge was dropped: the version that it leads to was never committed."""

MANY = 64
"""Versions after which listing all drops once is cheaper than asking for those of each."""


@dataclass(frozen=True)
class DropRecord:
    """A drop as stored: the edge, the version it led to, and who dropped it when and why (one of the words above)."""

    edge: str
    target: str
    who: str
    when: str
    why: str

    @classmethod
    def of(cls, edge: EdgeRecord, who: str, why: str) -> DropRecord:
        """A drop of this edge, now."""
        return cls(edge.id, edge.target, who, now(), why)

    @functools.cached_property
    def body(self) -> bytes:
        fields = {"edge": self.edge, "target": self.target, "who": self.who, "when": self.when, "why": self.why}
        return canonical.sealed(fields, "drop")

    @property
    def key(self) -> str:
        return drop_key(self.target, self.edge)

    @classmethod
    def parse(cls, body: bytes) -> DropRecord:
        """Read a stored drop. Raises BadPayload."""
        item = canonical.unsealed(body)
        try:
            record = cls(
                edge=match(ID, item["edge"]),
                target=match(ID, item["target"]),
                who=text(item["who"]),
                when=moment(item["when"]),
                why=text(item["why"]),
            )
        except (KeyError, ValueError) as error:
            raise BadPayload(f"not a drop: {error}") from error
        if record.body != bytes(body):
            raise BadPayload("not a drop: it is not in canonical form")
        return record


class Drops:
    """Which edges are dropped, asked of the bucket once per version, or once for all when many are asked for.

    What it has answered it goes on answering: make another one to learn of later drops.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self._asked = 0
        self._all: dict[str, set[str]] | None = None

    def of(self, target: str) -> Set[str]:
        """Ids of the dropped edges to one version. Raises StoreError."""
        with self._lock:
            self._asked += 1
            if self._asked > MANY and self._all is None:
                self._all = by_target(listed_edges(self._bucket, DROPS))
            if self._all is not None:
                return self._all.get(target, set())
        return {edge for _, edge in listed_edges(self._bucket, drops_prefix(target))}


def is_dropped(bucket: Bucket, edge: EdgeRecord) -> bool:
    """Whether an edge was dropped. One request. Raises StoreError."""
    try:
        bucket.get(drop_key(edge.target, edge.id), 0, 1)
    except ObjectMissing:
        return False
    return True


def by_target(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Pairs of target and edge id, as sets of edge ids by target."""
    found: dict[str, set[str]] = {}
    for target, edge in edges:
        found.setdefault(target, set()).add(edge)
    return found
