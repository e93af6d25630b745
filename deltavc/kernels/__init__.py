"""Kernels: difference, application, composition and fingerprints of lanes, with one result on every device.

    change, moved = diff(old, new, "add", box, shape)      # what happened, and what it does to the fingerprint
    apply(lanes, change, box, shape)                       # old becomes new, in its own storage
    apply(lanes, change, box, shape, sign=-1)              # and back
    fingerprint(new, box, shape) == (fingerprint(old, box, shape) + moved) % 2**64

`box` is where the lanes lie and `shape` the whole tensor's lane shape: a lane counts in the fingerprint by
its index in the whole, so that shards add up. CPU tensors go to compiled loops (`host`), others to plain
torch (`reference`), which gives the same bits. Any function may be called from any thread, from inside the
pool's workers, and in a forked child.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.errors import BadPayload
from deltavc.kernels import reference
from deltavc.lanes import LANE_DTYPES

__all__ = ["apply", "compose", "densify", "diff", "fingerprint", "sparsify", "zero_fingerprint"]


def diff(
    old: Tensor | None,
    new: Tensor,
    operation: Operation,
    box: Box,
    shape: tuple[int, ...],
    *,
    prefer: Literal["sparse", "dense"] | None = None,
    advance: bool = False,
) -> tuple[Change, int]:
    """Say what turns old lanes into new ones, and by how much that moves the fingerprint.

    Args:
        old: lanes as `new`, or None for nothing, where every lane is zero.
        new: int8, int16, int32 or int64 of shape `box.lengths`, any strides, any device.
        operation: "add" for wrapping differences, "xor" for differing bits.
        box, shape: where the lanes lie, and the whole tensor's lane shape.
        prefer: the kind of change. By default Dense when more than a quarter of the lanes changed or `old`
            is None, else Sparse.
        advance: also store `new` in `old`. If anything is raised meanwhile, even by an interrupt, `old` gets
            back what it held.

    Returns:
        The change, in memory of its own on the lanes' device, and the sum of mix64(new) - mix64(old) over
        the lanes that changed, in [0, 2**64): `fingerprint(new)` is that of `old` (of zeros) plus this.

    Raises:
        ValueError: arguments that do not fit each other.
    """
    _check_lanes(new, box, shape)
    if old is not None and (old.dtype, old.shape, old.device) != (new.dtype, new.shape, new.device):
        raise ValueError("old and new lanes differ in dtype, shape or device")
    if advance:
        if old is None:
            raise ValueError("there is nothing to advance: old is None")
        _check_writable(old)
    if prefer is None:
        max_sparse = -1 if old is None else new.numel() // 4
    else:
        max_sparse = new.numel() if prefer == "sparse" else -1
    change, moved = _backend(new).diff(old, new, operation, box, shape, max_sparse, advance)
    return change, moved


def apply(lanes: Tensor, change: Change, box: Box, shape: tuple[int, ...], sign: Literal[1, -1] = 1) -> int:
    """Change lanes in place, in their own storage.

    Args:
        lanes: int8, int16, int32 or int64 of shape `box.lengths`, any strides without overlap, any device.
        change: on the same device, of the same lane width.
        box, shape: where the lanes lie, and the whole tensor's lane shape.
        sign: -1 takes the change back. An "xor" is its own inverse.

    Returns:
        The sum of mix64(after) - mix64(before) over the lanes, in [0, 2**64).

    Raises:
        BadPayload: the change is not one of these lanes: values of another width or number, positions
            outside the box or out of order. The lanes are as they were.
        ValueError: other arguments that do not fit each other.
    """
    _check_lanes(lanes, box, shape)
    _check_writable(lanes)
    _check_change(change, box.num_lanes, lanes.dtype)
    if sign not in (1, -1):
        raise ValueError(f"sign is 1 or -1, not {sign}")
    return int(_backend(lanes).apply(lanes, change, box, shape, sign))


def compose(first: Change, second: Change, num_lanes: int) -> Change:
    """Make one change of two in a row over a box of `num_lanes` lanes.

    Returns:
        Sparse if both are, without the lanes that end as they began; else Dense. On their device, in memory
        of its own.

    Raises:
        BadPayload: one is not a change of such a box, or they differ in lane width.
        ValueError: they differ in operation.
    """
    if first.operation != second.operation:
        raise ValueError(f"changes by {first.operation!r} and {second.operation!r} compose through values only")
    for change in (first, second):
        _check_change(change, num_lanes, first.values.dtype)
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        merged: Sparse = _backend(first.values).merge(first, second)
        return merged
    # A dense change is lanes too, and both operations commute: the other one changes a copy of it.
    dense, other = (first, second) if isinstance(first, Dense) else (second, first)
    values = dense.values.clone()
    box = Box.whole((num_lanes,))
    _backend(values).apply(values, other, box, box.lengths, 1)
    return Dense(first.operation, values)


def fingerprint(lanes: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """Return the position-aware sum that names these lanes: of mix64(global index, value), modulo 2**64.

    Additive: the fingerprint of a tensor is the sum of the fingerprints of its boxes, so ranks can compute
    their shares without seeing the whole.

    Args:
        lanes: int8, int16, int32 or int64 of shape `box.lengths`, any strides, any device.
        box, shape: where the lanes lie, and the whole tensor's lane shape.

    Raises:
        ValueError: arguments that do not fit each other.

    Source: the additive construction of Bellare and Micciancio (EUROCRYPT 1997), with `reference.mix64` as
    the mixer. It detects faults; it does not resist someone who chooses the weights.
    """
    _check_lanes(lanes, box, shape)
    return int(_backend(lanes).fingerprint(lanes, box, shape))


def zero_fingerprint(box: Box, shape: tuple[int, ...]) -> int:
    """The fingerprint of a box whose lanes are all zero, of whatever width."""
    if not box.fits(shape):
        raise ValueError(f"{box} does not lie in a tensor of lane shape {shape}")
    return int(_host().zero_fingerprint(box, shape))


def densify(change: Change, num_lanes: int, lane_dtype: torch.dtype) -> Dense:
    """The same change with a value for every lane of its box.

    Raises:
        BadPayload: it is not a change of a box of `num_lanes` lanes of this dtype.
    """
    _check_change(change, num_lanes, lane_dtype)
    if isinstance(change, Dense):
        return change
    dense: Dense = _backend(change.values).densify(change, num_lanes)
    return dense


def sparsify(change: Change) -> Sparse:
    """The same change with only the lanes that it changes."""
    if isinstance(change, Sparse):
        return change
    box = Box.whole((change.num_changes,))
    sparse, _ = diff(None, change.values, change.operation, box, box.lengths, prefer="sparse")
    assert isinstance(sparse, Sparse)
    return sparse


def _backend(values: Tensor) -> ModuleType:
    return _host() if values.device.type == "cpu" else reference


@functools.cache
def _host() -> ModuleType:
    # Imported by its first use: numba takes half a second, which reading a log should not cost.
    from deltavc.kernels import host

    return host


def _check_lanes(lanes: Tensor, box: Box, shape: tuple[int, ...]) -> None:
    if lanes.dtype not in LANE_DTYPES.values():
        raise ValueError(f"{lanes.dtype} is not a type of lanes")
    if tuple(lanes.shape) != box.lengths or not box.fits(shape):
        raise ValueError(f"lanes of shape {tuple(lanes.shape)}, {box} and lane shape {shape} do not fit each other")


def _check_writable(lanes: Tensor) -> None:
    strides = zip(lanes.shape, lanes.stride(), strict=True)
    if lanes.numel() and any(length > 1 and stride == 0 for length, stride in strides):
        raise ValueError("expanded lanes cannot be changed: several of them share one place in memory")


def _check_change(change: Change, num_lanes: int, dtype: torch.dtype) -> None:
    if change.values.dtype != dtype:
        raise BadPayload(f"values are {change.values.dtype} where lanes are {dtype}")
    expected: Any = tuple(change.positions.shape) if isinstance(change, Sparse) else (num_lanes,)
    if change.values.dim() != 1 or tuple(change.values.shape) != expected:
        raise BadPayload(f"{tuple(change.values.shape)} values where {expected} are needed")
    if isinstance(change, Sparse) and not _backend(change.values).ascend(change.positions, num_lanes):
        raise BadPayload(f"positions outside a box of {num_lanes} lanes, or not in ascending order")
