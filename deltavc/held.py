"""Held lanes: one whole tensor per name, in memory, on a device, on disk, or in the caller's own tensors.

A walk works on them; a writer keeps them between commits as its base.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deltavc.lanes import LANE_DTYPES
from deltavc.layout import Layout, TensorSpec

Allocate = Callable[[TensorSpec], Tensor]
"""Gives lanes of the tensor's lane shape, all zero."""


class HeldLanes:
    """Lanes by tensor name; allocated zero when a tensor starts, forgotten when it is not kept."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._lanes: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._lanes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._lanes

    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    def start(self, name: str, layout: Layout) -> None:
        """Make the tensor of this name in `layout` present, all zero."""
        self._lanes[name] = self._allocate(layout.tensors[layout.place[name]])

    def keep(self, names: set[str]) -> None:
        """Forget every tensor but these."""
        self._lanes = {name: lanes for name, lanes in self._lanes.items() if name in names}

    def copy(self) -> HeldLanes:
        """Another collection of the same lanes, to go back to after tensors came and went."""
        copied = HeldLanes(self._allocate)
        copied._lanes = dict(self._lanes)
        return copied


def fresh(device: torch.device | str) -> Allocate:
    """New tensors on a device."""

    def allocate(tensor: TensorSpec) -> Tensor:
        return torch.zeros(tensor.lane_shape, dtype=LANE_DTYPES[tensor.lane_bytes], device=device)

    return allocate


def borrowed(buffers: Mapping[str, Tensor], layout: Layout) -> Allocate:
    """The caller's own lanes where a tensor is as in `layout`, new tensors on the CPU otherwise."""
    other = fresh("cpu")

    def allocate(tensor: TensorSpec) -> Tensor:
        place = layout.place.get(tensor.name)
        if place is None or tensor.name not in buffers:
            return other(tensor)
        target = layout.tensors[place]
        if (target.dtype, target.shape) != (tensor.dtype, tensor.shape):
            return other(tensor)
        return buffers[tensor.name].zero_()

    return allocate


def on_disk(directory: Path) -> Allocate:
    """Files mapped into memory, in a directory that the caller removes."""

    def allocate(tensor: TensorSpec) -> Tensor:
        if tensor.num_lanes == 0:
            return fresh("cpu")(tensor)
        with tempfile.NamedTemporaryFile(dir=directory, suffix=".lanes", delete=False) as file:
            file.truncate(tensor.nbytes)
        mapped = np.memmap(file.name, dtype=f"<i{tensor.lane_bytes}", mode="r+", shape=(tensor.num_lanes,))
        return torch.from_numpy(mapped).view(tensor.lane_shape)

    return allocate
