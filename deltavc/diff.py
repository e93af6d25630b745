"""What differs between two states, tensor by tensor.

An element counts as changed when its bits differ. How far it moved is counted in ULPs: how many values of its
dtype lie between the old and the new one, across zero, so that -0.0 and 0.0 are none apart and the smallest
negative and positive numbers two. Integers are counted by their difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from deltavc import notebook
from deltavc.amounts import share
from deltavc.lanes import LANE_DTYPES, lanes
from deltavc.layers import LayerDiff, by_layer
from deltavc.layout import LANE_BYTES, Layout

Status = Literal["same", "changed", "added", "dropped", "retyped"]

_CHUNK = 1 << 22
_SIGN_AND_MAGNITUDE = {"bfloat16", "float16", "float32", "float64", "complex64", "complex128"} | {
    name for name in LANE_BYTES if name.startswith("float8") and name != "float8_e8m0fnu"
}
_SIGNED = {"int8", "int16", "int32", "int64"}
_PART_BYTES = {"complex64": 4}
"""Dtypes whose lanes hold several numbers, and the bytes of one."""


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """One tensor. `largest_step` is in ULPs; elements, not lanes, are counted: a complex number is one."""

    name: str
    status: Status
    num_elements: int
    changed_elements: int
    largest_step: int

    @property
    def density(self) -> float:
        """The share of its elements that changed."""
        return self.changed_elements / self.num_elements if self.num_elements else 0.0


@dataclass(frozen=True, slots=True)
class Diff:
    """Two versions compared: one TensorDiff for every stored tensor of either, by name."""

    a: str
    b: str
    tensors: tuple[TensorDiff, ...]

    @property
    def total(self) -> TensorDiff:
        """All tensors together."""
        return TensorDiff(
            "total",
            "changed" if any(tensor.status != "same" for tensor in self.tensors) else "same",
            sum(tensor.num_elements for tensor in self.tensors),
            sum(tensor.changed_elements for tensor in self.tensors),
            max((tensor.largest_step for tensor in self.tensors), default=0),
        )

    def by_layer(self) -> tuple[LayerDiff, ...]:
        """The tensors summed up by layer, as `deltavc.layers` tells them apart, in the order of layers."""
        return by_layer(self.tensors)

    def _repr_html_(self) -> str:
        """A small table of the layers that differ, for notebooks."""
        layers = (layer for layer in self.by_layer() if layer.num_changed)
        shown: list[TensorDiff | LayerDiff] = [self.total, *layers]
        rows = [
            (
                each.name,
                f"{each.changed_elements:,}",
                f"{each.num_elements:,}",
                share(each.changed_elements, each.num_elements),
                f"{each.largest_step:,} ulp" if each.largest_step else "",
            )
            for each in shown
        ]
        head = ("layer", "changed", "of", "share", "largest step")
        return notebook.table(f"{self.a[:12]} to {self.b[:12]}", head, rows)

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "a": self.a,
            "b": self.b,
            "tensors": [_tensor_json(tensor) for tensor in self.tensors],
            "total": _tensor_json(self.total),
        }


def compare(
    a: str, b: str, old: Mapping[str, Tensor], new: Mapping[str, Tensor], old_layout: Layout, new_layout: Layout
) -> Diff:
    """Compare two states by their stored tensors.

    Args:
        a, b: ids of the versions they are. old, new: tensors on the CPU by name, as `old_layout`, `new_layout`.
    """
    before = {old_layout.tensors[place].name: old_layout.tensors[place] for place in old_layout.stored}
    after = {new_layout.tensors[place].name: new_layout.tensors[place] for place in new_layout.stored}
    found = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is not None and now is not None and (was.dtype, was.shape) == (now.dtype, now.shape):
            found.append(_compare_tensor(name, was.dtype, old[name], new[name]))
            continue
        status: Status = "dropped" if now is None else "added" if was is None else "retyped"
        spec = now if now is not None else was
        assert spec is not None
        size = spec.num_lanes // (2 if spec.dtype == "complex128" else 1)
        found.append(TensorDiff(name, status, size, size, 0))
    return Diff(a, b, tuple(found))


def _compare_tensor(name: str, dtype: str, old: Tensor, new: Tensor) -> TensorDiff:
    changed, largest = 0, 0
    per_element = 2 if dtype == "complex128" else 1
    old_lanes, new_lanes = lanes(old).reshape(-1), lanes(new).reshape(-1)
    for start in range(0, old_lanes.numel(), _CHUNK):
        was, now = old_lanes[start : start + _CHUNK], new_lanes[start : start + _CHUNK]
        places = (was != now).nonzero().squeeze(1)
        if not places.numel():
            continue
        elements = places // per_element
        changed += int(torch.unique_consecutive(elements).numel())
        largest = max(largest, largest_step(dtype, was[places], now[places]))
    status: Status = "changed" if changed else "same"
    return TensorDiff(name, status, old_lanes.numel() // per_element, changed, largest)


def largest_step(dtype: str, old: Tensor, new: Tensor) -> int:
    """The largest distance in ULPs between lanes of a dtype; 1-D lanes of equal length, not empty."""
    if dtype == "float4_e2m1fn_x2":
        return max(
            _largest(_magnitude_order(_nibble(old, shift), 4), _magnitude_order(_nibble(new, shift), 4))
            for shift in (0, 4)
        )
    width = _PART_BYTES.get(dtype, old.element_size())
    if width != old.element_size():
        old, new = old.view(LANE_DTYPES[width]), new.view(LANE_DTYPES[width])
    was, now = (values.numpy().view(f"u{width}").astype(np.uint64) for values in (old, new))
    if dtype in _SIGN_AND_MAGNITUDE:
        was, now = _magnitude_order(was, 8 * width), _magnitude_order(now, 8 * width)
    elif dtype in _SIGNED:
        flip = np.uint64(1 << (8 * width - 1))
        was, now = was ^ flip, now ^ flip
    return _largest(was, now)


def _magnitude_order(bits: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Numbers of sign and magnitude as unsigned integers in their order, both zeros at 2**(width - 1)."""
    zero = np.uint64(1 << (width - 1))
    magnitude = bits & (zero - np.uint64(1))
    return np.where(bits & zero, zero - magnitude, zero + magnitude)


def _nibble(values: Tensor, shift: int) -> np.ndarray[Any, Any]:
    return (values.numpy().view(np.uint8).astype(np.uint64) >> np.uint64(shift)) & np.uint64(15)


def _largest(was: np.ndarray[Any, Any], now: np.ndarray[Any, Any]) -> int:
    return int(np.where(was > now, was - now, now - was).max())


def _tensor_json(tensor: TensorDiff) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "status": tensor.status,
        "num_elements": tensor.num_elements,
        "changed_elements": tensor.changed_elements,
        "density": tensor.density,
        "largest_step": tensor.largest_step,
    }
