"""When to write a snapshot beside a delta, and what of the last one can be used again.

A trail is the way from the last snapshot to the head. It costs its bytes to everyone who checks the head
out; when they reach a share of the snapshot's own, or its edges a number, the next commit writes a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deltavc.layout import Layout
from deltavc.lineage.plan import Plan
from deltavc.lineage.records import EdgeRecord


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """Bounds of a trail. A checkout then reads at most 1 + `max_ratio` snapshots and walks `max_edges` edges."""

    max_edges: int = 1000
    max_ratio: float = 0.5


DEFAULT_POLICY = SnapshotPolicy()


@dataclass(frozen=True, slots=True)
class Trail:
    """Edges from a snapshot to a version. `touched` are the tensors that changed on the way."""

    snapshot: EdgeRecord | None = None
    nbytes: int = 0
    num_edges: int = 0
    touched: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def along(cls, plan: Plan, layouts: dict[str, Layout]) -> Trail:
        """The trail of a forward plan from nothing."""
        trail = cls()
        for step in plan.steps:
            trail = trail.after(step.edge, layouts[step.edge.layout])
        return trail

    def after(self, edge: EdgeRecord, layout: Layout) -> Trail:
        """The trail with one more edge, whose target has `layout`."""
        if edge.base is None:
            return Trail(snapshot=edge)
        names = {layout.tensors[place].name for place in edge.changed}
        return replace(
            self,
            nbytes=self.nbytes + edge.nbytes,
            num_edges=self.num_edges + 1,
            touched=self.touched | names,
        )

    def due(self, policy: SnapshotPolicy) -> bool:
        """Whether the next commit should bring a snapshot."""
        if self.snapshot is None:
            return False
        return self.num_edges >= policy.max_edges or self.nbytes >= policy.max_ratio * self.snapshot.nbytes

    def reusable(self, layout: Layout, fingerprints: Mapping[str, int]) -> set[str]:
        """Tensors whose frames in the last snapshot still hold, before the commit at hand is looked at.

        Args:
            fingerprints: of the version at the end of the trail. They have to be the snapshot's: a snapshot with frames
                of other values would be found out only when it is needed.
        """
        if self.snapshot is None or self.snapshot.layout != layout.id:
            return set()
        told = zip(self.snapshot.changed, self.snapshot.fingerprints, strict=True)
        values = {layout.tensors[place].name: int(value, 16) for place, value in told}
        return {name for name, value in values.items() if name not in self.touched and fingerprints[name] == value}
