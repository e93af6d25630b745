"""Composing: one edge in the place of many.

    v0 ──> v1 ──> v2 ──> v3          walked once, on a copy of v0's lanes, and proven to be v3
     └──────────────────> v3         what differs between the two copies, packed as for a commit

The change is taken between values, so it does not matter which operations, boxes and layouts the way went
through. The copy that was at the base ends at the target, proven by its own fingerprints, before the edge is
written; and so the next edge along a chain starts from what is already there.

Until the edge object is put, an interrupted composition leaves nothing but packs that no edge names.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from torch import Tensor

from deltavc import edges, fingerprints, held, packing
from deltavc.access import Access
from deltavc.base import Base
from deltavc.change import Box
from deltavc.errors import TooLate, WrongWeights
from deltavc.freshness import Mark
from deltavc.held import HeldLanes
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage.drops import DAMAGED, DropRecord
from deltavc.lineage.records import EdgeRecord
from deltavc.moving import move_base, trail_to
from deltavc.packing import Packs
from deltavc.store.files import temporary_directory
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.timings import Timings
from deltavc.walk import Objects


def compose_path(access: Access, base: str | None, target: str) -> EdgeRecord:
    """Write one edge from a version (None: a snapshot) to another, over the cheapest way there is.

    What it may take of memory is what `access.objects` may; lanes that do not fit lie in temporary files.

    Returns:
        The edge, which is in the bucket and in the database.

    Raises:
        UnknownRef, NoPath: a version is not known, or nothing leads to it.
        Corruption: something on the way is damaged or gone; no edge was written.
        TooLate: it took more than half the repository's grace; no edge was written, or it was dropped again.
        StoreError, DatabaseUnavailable: in the latter case the edge may be in the bucket all the same.
    """
    with Composer(access) as composer:
        return composer.compose(base, target)


class Composer:
    """Writes edges one after another; cheapest when each starts where the one before it ended."""

    def __init__(self, access: Access) -> None:
        memory = access.objects.memory
        self._memory = min(memory // 4, DEFAULT_MEMORY)  # frames in the making need no more
        self._room = memory - self._memory
        objects = Objects(access.store, access.transfers, self._memory)
        self._access = dataclasses.replace(access, objects=objects)
        self._on_disk = False
        self._directory = temporary_directory("deltavc-compose-")
        self._from = Base(HeldLanes(self._allocate))
        self._to = Base(HeldLanes(self._allocate))

    def compose(self, base: str | None, target: str) -> EdgeRecord:
        """Write the edge that jumps from `base` to `target`. Takes, returns and raises what `compose_path` does."""
        if base == target:
            raise ValueError("an edge leads from one version to another")
        mark = self._access.freshness.mark()
        record = self._access.index.version(target).record
        layout = self._access.objects.layout(record.layout, target)
        self._on_disk = 2 * layout.nbytes > self._room
        packs = Packs(layout, self._access.store, self._access.transfers, self._memory, Timings("upload"))
        try:
            if base is None:
                made = self._snapshot(layout, target, packs)
            else:
                made = self._delta(base, layout, target, packs)
            if fingerprints.root(layout, self._from.fingerprints) != record.fingerprint:
                raise WrongWeights(target, ())
            packs.wait()
        except BaseException:
            packs.abandon()
            raise
        self._publish(made, mark)
        self._access.index.record([], edges=[made])
        return made

    def close(self) -> None:
        """Let go of the lanes."""
        self._from.clear()
        self._to.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish(self, made: EdgeRecord, mark: Mark) -> None:
        """Put the edge while clean-up leaves its packs alone. Raises TooLate.

        Unlike a commit's, whose edges are there before its last check, this put is what names the packs. So the store
        is asked when it landed, whatever this machine's clocks say.
        """
        store, what = self._access.store, f"an edge to version {made.target}"
        leave = self._access.freshness.check(mark, what)
        store.put(made.key, made.body)
        age = store.stat(made.key).modified - mark.at
        if age > leave.grace / 2:  # a gc that has not seen it may be deleting its packs
            record = DropRecord.of(made, self._access.author, DAMAGED)
            store.create(record.key, record.body)
            raise TooLate(what, age.total_seconds(), leave.grace.total_seconds() / 2)

    def _delta(self, base: str, layout: Layout, target: str, packs: Packs) -> EdgeRecord:
        self._start_at(base)
        move_base(self._access, self._to, target)
        undo = self._from.begin(0)
        self._from.lost = True  # until it is known to be at the target
        view = _Differing.between(self._from, self._to, layout)
        timings = Timings("read", "diff", "verify", "encode")
        found = packing.read(view, layout, self._from, undo, packs, codec=None, memory=self._memory, timings=timings)
        made = edges.delta(undo.before, layout, self._from.fingerprints, target, packs.packed, found, origin="compact")
        self._from.version, self._from.lost = target, False
        return made

    def _snapshot(self, layout: Layout, target: str, packs: Packs) -> EdgeRecord:
        move_base(self._access, self._from, target)
        trail = trail_to(self._access, target)
        reused = trail.reusable(layout, self._from.fingerprints)
        timings = Timings("encode")
        return edges.snapshot(
            self._access.objects, self._from, layout, target, packs, trail, reused, None, timings, origin="compact"
        )

    def _start_at(self, base: str) -> None:
        """Bring both copies to the base's weights, reading them once."""
        move_base(self._access, self._from, base)
        if self._to.version == base and not self._to.lost:
            return
        self._to.clear()
        layout = self._from.layout
        assert layout is not None  # it is at a version
        for name in self._from.lanes:
            self._to.lanes.start(name, layout)
            self._to.lanes[name].copy_(self._from.lanes[name])
        self._to.layout, self._to.fingerprints = layout, dict(self._from.fingerprints)
        self._to.version, self._to.lost = base, False

    def _allocate(self, tensor: TensorSpec) -> Tensor:
        return held.on_disk(self._directory)(tensor) if self._on_disk else held.fresh("cpu")(tensor)


@dataclass(frozen=True, slots=True)
class _Differing:
    """Those tensors of a version that another one does not hold, as `packing.read` reads them."""

    tensors: Mapping[str, Tensor]

    @classmethod
    def between(cls, before: Base[HeldLanes], after: Base[HeldLanes], layout: Layout) -> _Differing:
        """Where fingerprints agree, so do the lanes."""
        assert before.layout is not None
        carried = fingerprints.carried(before.layout, layout)
        names: Iterable[str] = (
            name for name in after.lanes if name not in carried or before.fingerprints[name] != after.fingerprints[name]
        )
        return cls({name: after.lanes[name] for name in names})

    def lanes(self, name: str, box: Box) -> Tensor:
        whole = self.tensors[name]
        return whole[box.index] if box.lengths else whole
