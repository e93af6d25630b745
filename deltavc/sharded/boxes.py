"""Held boxes: the lanes that one rank keeps, which are boxes of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from torch import Tensor

from deltavc.bound import Bound, Cell
from deltavc.change import Box
from deltavc.layout import Layout, TensorSpec


class HeldBoxes:
    """Lanes of boxes, by tensor name.

    allocate: gives lanes of a tensor of a box's shape, all zero. owned: the boxes to hold of each tensor, apart from
    each other.
    """

    def __init__(self, allocate: Callable[[TensorSpec], Tensor], owned: Mapping[str, Sequence[Box]]) -> None:
        self._allocate = allocate
        self._owned = owned
        self._lanes: dict[str, dict[Box, Tensor]] = {}

    def boxes(self, tensor: TensorSpec) -> Sequence[Box]:
        return self._owned.get(tensor.name, ())

    def at(self, name: str, box: Box) -> Tensor:
        held = self._lanes[name]
        if box in held:
            return held[box]
        outer = next(outer for outer in held if box.within(outer).fits(outer.lengths))
        return held[outer][box.within(outer).index]

    def start(self, name: str, layout: Layout) -> None:
        tensor = layout.tensors[layout.place[name]]
        dims = len(tensor.shape)  # complex128 has lanes within elements, which no box cuts
        self._lanes[name] = {
            box: self._allocate(replace(tensor, shape=box.lengths[:dims])) for box in self.boxes(tensor)
        }

    def keep(self, names: Set[str]) -> None:
        self._lanes = {name: lanes for name, lanes in self._lanes.items() if name in names}

    def copy(self) -> HeldBoxes:
        return self.owning(self._owned)

    def owning(self, owned: Mapping[str, Sequence[Box]]) -> HeldBoxes:
        """Another collection of the same lanes, for other boxes of tensors that start from now on."""
        copied = HeldBoxes(self._allocate, owned)
        copied._lanes = dict(self._lanes)
        return copied

    def bound(self, layout: Layout) -> Bound:
        """The lanes as cells of a version's tensors, to walk on."""
        held = self._lanes.items()
        return Bound(layout, {name: tuple(self._cells(layout, name)) for name, _ in held}, frozenset(), frozenset())

    def _cells(self, layout: Layout, name: str) -> Iterator[Cell]:
        shape = layout.tensors[layout.place[name]].lane_shape
        return (Cell(name, box, shape, lanes) for box, lanes in self._lanes[name].items())
