"""The kernels of many tensors at once: checks, and every device its share.

A device with Triton does each in a launch or two, however many tensors there are; others take one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.errors import BadPayload
from deltavc.kernels.devices import by_device, gpu, single
from deltavc.kernels.part import Listed, Part
from deltavc.lanes import LANE_DTYPES


def diff_all(
    olds: Sequence[Tensor | None],
    parts: Sequence[Part],
    operation: Operation,
    *,
    prefer: Literal["sparse", "dense"] | None = None,
    advance: bool = False,
) -> list[tuple[Change, int]]:
    """`diff` of many parts, from their old lanes to those they have.

    With `advance`, an exception leaves every old tensor either as it was or as its new one, whole.
    """
    for old, part in zip(olds, parts, strict=True):
        check_part(part)
        lanes = part.lanes
        if old is not None and (old.dtype, old.shape, old.device) != (lanes.dtype, lanes.shape, lanes.device):
            raise ValueError("old and new lanes differ in dtype, shape or device")
        if advance:
            if old is None:
                raise ValueError("there is nothing to advance: old is None")
            _check_writable(old)
    limits = [_max_sparse(old, part.lanes, prefer) for old, part in zip(olds, parts, strict=True)]

    def run(device: torch.device, numbers: list[int]) -> list[tuple[Change, int]]:
        share = [(olds[n], parts[n], limits[n]) for n in numbers]
        if (kernels := gpu(device)) is not None:
            found: list[tuple[Change, int]] = kernels.diff_all(*zip(*share, strict=True), operation, advance)
            return found
        return [
            single(device).diff(old, part.lanes, operation, part.box, part.shape, limit, advance)
            for old, part, limit in share
        ]

    return by_device([part.lanes.device for part in parts], run)


def apply_all(parts: Sequence[Part], changes: Sequence[Change], sign: Literal[1, -1] = 1) -> list[int]:
    """`apply` to many parts. All changes are checked before one is applied."""
    if sign not in (1, -1):
        raise ValueError(f"sign is 1 or -1, not {sign}")
    for part in parts:
        check_part(part)
        _check_writable(part.lanes)
    check_changes(changes, [part.box.num_lanes for part in parts], [part.lanes.dtype for part in parts])

    def run(device: torch.device, numbers: list[int]) -> list[int]:
        share = [(parts[n], changes[n]) for n in numbers]
        if (kernels := gpu(device)) is not None:
            sums: list[int] = kernels.apply_all(*zip(*share, strict=True), sign)
            return sums
        return [single(device).apply(part.lanes, change, part.box, part.shape, sign) for part, change in share]

    return by_device([part.lanes.device for part in parts], run)


def compose_all(firsts: Sequence[Change], seconds: Sequence[Change], num_lanes: Sequence[int]) -> list[Change]:
    """`compose` of many pairs."""
    for first, second in zip(firsts, seconds, strict=True):
        if first.operation != second.operation:
            raise ValueError(f"changes by {first.operation!r} and {second.operation!r} compose through values only")
    dtypes = [first.values.dtype for first in firsts]
    check_changes(firsts, num_lanes, dtypes)
    check_changes(seconds, num_lanes, dtypes)

    def run(device: torch.device, numbers: list[int]) -> list[Change]:
        found: dict[int, Change] = {}
        sparse: dict[int, tuple[Sparse, Sparse]] = {}
        for n in numbers:
            first, second = firsts[n], seconds[n]
            if isinstance(first, Sparse) and isinstance(second, Sparse):
                sparse[n] = first, second
        if sparse:
            kernels = gpu(device)
            if kernels is not None:
                found |= zip(sparse, kernels.merge_all(*zip(*sparse.values(), strict=True)), strict=True)
            else:
                found |= {n: single(device).merge(*pair) for n, pair in sparse.items()}
        rest = [n for n in numbers if n not in sparse]
        # A dense change is lanes too, and both operations commute: the other one changes a copy of it.
        bases = [(firsts[n], seconds[n]) if isinstance(firsts[n], Dense) else (seconds[n], firsts[n]) for n in rest]
        values = [base.values.clone() for base, _ in bases]
        lines = [Box.whole((num_lanes[n],)) for n in rest]
        targets = [Part(copy, box, box.lengths) for copy, box in zip(values, lines, strict=True)]
        apply_all(targets, [other for _, other in bases])
        found |= {n: Dense(firsts[n].operation, copy) for n, copy in zip(rest, values, strict=True)}
        return [found[n] for n in numbers]

    return by_device([first.values.device for first in firsts], run)


def fingerprint_all(parts: Sequence[Part]) -> list[int]:
    """`fingerprint` of many parts."""
    for part in parts:
        check_part(part)

    def run(device: torch.device, numbers: list[int]) -> list[int]:
        share = [parts[n] for n in numbers]
        if (kernels := gpu(device)) is not None:
            sums: list[int] = kernels.fingerprint_all(share)
            return sums
        return [single(device).fingerprint(part.lanes, part.box, part.shape) for part in share]

    return by_device([part.lanes.device for part in parts], run)


def moved_all(lists: Sequence[Listed]) -> list[int]:
    """`moved` of many lists. All are checked before one is summed."""
    for listed in lists:
        _check_listed(listed)
    _check_ascending([(listed.positions, listed.box.num_lanes) for listed in lists])

    def run(device: torch.device, numbers: list[int]) -> list[int]:
        share = [lists[n] for n in numbers]
        if (kernels := gpu(device)) is not None:
            sums: list[int] = kernels.moved_all(share)
            return sums
        return [single(device).moved(listed) for listed in share]

    return by_device([listed.positions.device for listed in lists], run)


def check_part(part: Part) -> None:
    """Raise ValueError unless lanes, box and shape fit each other."""
    lanes, box, shape = part.lanes, part.box, part.shape
    if lanes.dtype not in LANE_DTYPES.values():
        raise ValueError(f"{lanes.dtype} is not a type of lanes")
    if tuple(lanes.shape) != box.lengths or not box.fits(shape):
        raise ValueError(f"lanes of shape {tuple(lanes.shape)}, {box} and lane shape {shape} do not fit each other")


def check_changes(changes: Sequence[Change], num_lanes: Sequence[int], dtypes: Sequence[torch.dtype]) -> None:
    """Raise BadPayload unless they are changes of so many lanes of these types."""
    for change, count, dtype in zip(changes, num_lanes, dtypes, strict=True):
        if change.values.dtype != dtype:
            raise BadPayload(f"values are {change.values.dtype} where lanes are {dtype}")
        expected: Any = tuple(change.positions.shape) if isinstance(change, Sparse) else (count,)
        if change.values.dim() != 1 or tuple(change.values.shape) != expected:
            raise BadPayload(f"{tuple(change.values.shape)} values where {expected} are needed")
    _check_ascending(
        [
            (change.positions, count)
            for change, count in zip(changes, num_lanes, strict=True)
            if isinstance(change, Sparse)
        ]
    )


def _check_listed(listed: Listed) -> None:
    """Raise unless old and new lanes, box and shape fit each other."""
    positions, old, new = listed.positions, listed.old, listed.new
    if new.dtype not in LANE_DTYPES.values():
        raise ValueError(f"{new.dtype} is not a type of lanes")
    if not listed.box.fits(listed.shape):
        raise ValueError(f"{listed.box} does not lie in a tensor of lane shape {listed.shape}")
    if not positions.device == old.device == new.device:
        raise ValueError(f"positions on {positions.device}, old lanes on {old.device}, new ones on {new.device}")
    if old.dtype != new.dtype:
        raise BadPayload(f"old lanes are {old.dtype}, new ones {new.dtype}")
    if positions.dim() != 1 or not positions.shape == old.shape == new.shape:
        shapes = [tuple(tensor.shape) for tensor in (positions, old, new)]
        raise BadPayload("positions, old and new lanes have shapes {}, {} and {}".format(*shapes))


def _check_ascending(lists: Sequence[tuple[Tensor, int]]) -> None:
    """Raise BadPayload unless each list's positions rise strictly and lie in a box of so many lanes."""

    def run(device: torch.device, numbers: list[int]) -> list[bool]:
        share = [lists[n] for n in numbers]
        if (kernels := gpu(device)) is not None:
            found: list[bool] = kernels.ascend_all(*zip(*share, strict=True))
            return found
        return [single(device).ascend(positions, count) for positions, count in share]

    sound = by_device([positions.device for positions, _ in lists], run)
    for (_, count), fine in zip(lists, sound, strict=True):
        if not fine:
            raise BadPayload(f"positions outside a box of {count} lanes, or not in ascending order")


def _check_writable(lanes: Tensor) -> None:
    strides = zip(lanes.shape, lanes.stride(), strict=True)
    if lanes.numel() and any(length > 1 and stride == 0 for length, stride in strides):
        raise ValueError("expanded lanes cannot be changed: several of them share one place in memory")


def _max_sparse(old: Tensor | None, new: Tensor, prefer: str | None) -> int:
    """How many lanes may change before a change is dense."""
    if prefer is None:
        return -1 if old is None else new.numel() // 4
    return new.numel() if prefer == "sparse" else -1
