"""A run over its steps: bytes, density and metrics of its versions, and how much each of its layers changed.

    history     o──o──o──o──o──o──o──o──o──o   first parents of a ref: 10,000 versions, say
    sample      o────────o────────o────────o   at most a few hundred of them, evenly, the first and the last too
    layers      ▓────────▒────────▒────────░   from the indexes of their packs, which count what every frame changes

No weights are read: of a pack, only the few kilobytes at its end. Where a tensor was stored densely, its frame does not
count what changed in it. The record of the edge counts all that changed, so what is left after the tensors that were
counted is shared out evenly among those that were not; the version says then that its layers are averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from deltavc.delta.pack import PackIndex
from deltavc.errors import CorruptObject, MissingObject
from deltavc.layers import layer_of, layer_order
from deltavc.layout import Layout
from deltavc.lineage.index import Index
from deltavc.lineage.info import VersionInfo
from deltavc.lineage.records import EdgeRecord, PackUse
from deltavc.version import Version
from deltavc.walk import Objects

MAX_LAYERS = 1000
"""Layers that are told apart. A state with more has names that mean something else, and is taken as one layer, ALL."""

ALL = "all tensors"


@dataclass(frozen=True, slots=True)
class Sample:
    """One version of a series.

    nbytes: what its commit added to the store; None when its weights were not kept. density: share of its lanes that
    its commit changed; None for the first version, and when no record tells any more. layers: the same for each layer
    of its layout, by name; None where density is. averaged: some of them are means over several layers.
    """

    version: Version
    nbytes: int | None
    density: float | None
    layers: Mapping[str, float] | None
    averaged: bool

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        known = self.version.as_json()
        told = {name: known[name] for name in ("id", "step", "time", "metrics")}
        told |= {"nbytes": self.nbytes, "density": self.density}
        return told | {"layers": None if self.layers is None else dict(self.layers), "averaged": self.averaged}


@dataclass(frozen=True, slots=True)
class Series:
    """Versions of one history, oldest first: all of them, or a sample of `num_versions`."""

    ref: str
    num_versions: int
    samples: tuple[Sample, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that the samples have, those that most of them have first."""
        counts = Counter(name for sample in self.samples for name in sample.version.metrics)
        return tuple(sorted(counts, key=lambda name: (-counts[name], name)))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that the samples have, in order."""
        return tuple(sorted({layer for sample in self.samples for layer in sample.layers or ()}, key=layer_order))

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        samples = [sample.as_json() for sample in self.samples]
        return {"ref": self.ref, "num_versions": self.num_versions, "samples": samples}


def series(index: Index, objects: Objects, ref: str, head: str, most: int) -> Series:
    """Gather the series of a version's first-parent history.

    Args:
        ref: what `head` was asked for as. most: how many samples at most.

    Raises:
        DatabaseNeeded, DatabaseUnavailable, StoreError
        CorruptObject: an index of a pack is damaged.
    """
    total, infos = index.sampled(head, most)
    deltas = {info.id: edge for info in infos if (edge := _delta(index, info)) is not None}
    layers = cache(lambda layout: _Layers.of(objects.layout(layout)))
    tallies = {version: _Tally() for version in deltas}
    uses = [(edge, use) for edge in deltas.values() for use in edge.packs]

    def read(item: tuple[EdgeRecord, PackUse]) -> PackIndex | None:
        edge, use = item
        with suppress(MissingObject):  # clean-up took the pack, and the database has not heard of it
            return objects.index(use, edge.target, small=0)[0]
        return None

    ahead = objects.transfers.ahead(uses, read, lambda item: 16 * item[1].index[2], objects.memory // 4)
    for (edge, use), found in ahead:
        try:
            tallies[edge.target].add(use, found, layers(edge.layout))
        except IndexError:
            raise CorruptObject(use.key, "its frames are not those that the edge names", edge.target) from None
    return Series(
        ref,
        total,
        tuple(_sample(info, deltas.get(info.id), tallies.get(info.id), layers) for info in infos),
    )


def _sample(
    info: VersionInfo, delta: EdgeRecord | None, tally: _Tally | None, layers: Callable[[str], _Layers]
) -> Sample:
    version, nbytes = Version.known(info), info.stored_bytes if info.weights else None
    if delta is None or tally is None or tally.incomplete or not info.num_lanes:
        return Sample(version, nbytes, None, None, False)
    shares, averaged = tally.shares(delta.changes, layers(delta.layout).lanes)
    return Sample(version, nbytes, delta.changes / info.num_lanes, shares, averaged)


def _delta(index: Index, info: VersionInfo) -> EdgeRecord | None:
    """What was written of a version as a change from its first parent, if that is still there."""
    found = (edge for edge in index.edges_into(info.id) if edge.origin == "commit")
    return next((edge for edge in found if edge.base in info.record.parents[:1]), None)


@dataclass(frozen=True, slots=True)
class _Layers:
    """A layout, the layer of each of its tensors by place, and the lanes of each layer."""

    layout: Layout
    of_place: tuple[str, ...]
    lanes: Mapping[str, int]

    @classmethod
    def of(cls, layout: Layout) -> _Layers:
        names = tuple(layer_of(tensor.name) for tensor in layout.tensors)
        if len(set(names)) > MAX_LAYERS:
            names = (ALL,) * len(names)
        lanes: Counter[str] = Counter()
        for place in layout.stored:
            lanes[names[place]] += layout.tensors[place].num_lanes
        return cls(layout, names, lanes)


class _Tally:
    """What the frames of one edge change, by layer: lanes that are counted, and lanes of frames that do not count."""

    def __init__(self) -> None:
        self.incomplete = False
        self._counted: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()

    def add(self, use: PackUse, index: PackIndex | None, layers: _Layers) -> None:
        """Add the frames that an edge uses of a pack; `index` is None if that is not to be had."""
        if index is None:
            self.incomplete = True
            return
        for number in range(len(index.frames)) if use.frames is None else use.frames:
            frame = index.frames[number]
            tensor = layers.layout.tensors[frame.place]
            whole = tensor.num_lanes if frame.box is None else frame.box.num_lanes
            counts = self._counted if frame.num_changes < whole else self._uncounted
            counts[layers.of_place[frame.place]] += frame.num_changes

    def shares(self, changes: int, lanes: Mapping[str, int]) -> tuple[dict[str, float], bool]:
        """The share of each layer that changed, when `changes` lanes did; and whether some of them are means."""
        left, uncounted = changes - self._counted.total(), self._uncounted.total()
        mean = min(max(left / uncounted, 0.0), 1.0) if uncounted else 0.0
        found = {
            layer: min((self._counted[layer] + mean * self._uncounted[layer]) / count, 1.0)
            for layer, count in lanes.items()
            if count
        }
        return found, 0 < mean < 1 and len(self._uncounted) > 1
