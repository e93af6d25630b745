"""Bound: the live memory that holds a version's tensors, cut into cells.

A cell is a box of one checkpoint tensor and the lanes of live memory that hold it. Whoever writes every cell's box
into its lanes has moved the live state to a version, whatever fusions, slices and permutations lie between.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from deltavc.change import Box
from deltavc.layout import Layout
from deltavc.live import stored_name


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A box of a checkpoint tensor, and where it is live.

    name: the checkpoint tensor's, as in the layout; tied names have cells where they lie apart. box: in lanes of the
    whole tensor. shape: the whole tensor's lane shape. lanes: int8, int16, int32 or int64 of shape `box.lengths`, any
    strides, any device; a view of live memory.
    """

    name: str
    box: Box
    shape: tuple[int, ...]
    lanes: Tensor

    @property
    def device(self) -> torch.device:
        return self.lanes.device


@dataclass(frozen=True, eq=False)
class Bound:
    """What of a version's tensors is held by live memory, and where.

    layout: the version's. by_name: the cells of each name that is held at a place of its own, in the layout's order;
    none for a tensor without lanes. Tied names that share live memory are one place, under the first of them.
    whole: names of `by_name` whose cells cover the whole tensor. partial: the others. missing: tensors with values in
    the layout of which no lane is held under any name.
    """

    layout: Layout
    by_name: Mapping[str, tuple[Cell, ...]]
    whole: frozenset[str]
    missing: frozenset[str]

    @property
    def names(self) -> Set[str]:
        """Checkpoint names that are held, each with cells of its own, in the layout's order."""
        return self.by_name.keys()

    @functools.cached_property
    def partial(self) -> frozenset[str]:
        """Names that are held in part only."""
        return frozenset(self.by_name) - self.whole

    @functools.cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, in the layout's order. No two share memory."""
        return tuple(cell for cells in self.by_name.values() for cell in cells)

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of live lanes."""
        return sum(cell.lanes.nbytes for cell in self.cells)

    def cells_of(self, name: str) -> tuple[Cell, ...]:
        """The cells of one of `names`; those of one shard follow each other in row-major order."""
        return self.by_name[name]

    def stored(self, name: str) -> str:
        """The name under which a version keeps the values, and so the fingerprint, of these lanes."""
        return stored_name(self.layout, name)
