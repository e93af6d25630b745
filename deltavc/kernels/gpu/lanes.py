"""Fingerprint and apply on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deltavc.change import Change, Sparse
from deltavc.kernels.gpu import loops
from deltavc.kernels.gpu.table import LANES, Row, Table, dims_of, first_index, flat, groups
from deltavc.kernels.part import Part

_MASK = (1 << 64) - 1


def fingerprint_all(parts: Sequence[Part]) -> list[int]:
    """`kernels.fingerprint_all` of parts on one device."""
    sums = [0] * len(parts)
    for group in groups(range(len(parts)), lambda n: (parts[n].lanes.element_size(), flat(parts[n].lanes))):
        rows = [
            Row(part.lanes.numel(), dims_of(part, part.lanes), first_index(part), a=part.lanes.data_ptr())
            for part in (parts[n] for n in group)
        ]
        lanes = parts[group[0]].lanes
        table = Table(rows, lanes.device)
        moved = new_sums(table)
        table.launch(loops.fingerprint, moved, LANE=LANES[lanes.element_size()], FLAT=flat(lanes))
        spread(sums, group, moved)
    return sums


def apply_all(parts: Sequence[Part], changes: Sequence[Change], sign: int) -> list[int]:
    """`kernels.apply_all` of changes that were checked, on one device."""
    sums = [0] * len(parts)
    changes = [_contiguous(change) for change in changes]

    def kind(n: int) -> tuple[int, bool, bool]:
        return parts[n].lanes.element_size(), isinstance(changes[n], Sparse), _flat(parts[n], changes[n])

    for group in groups(range(len(parts)), kind):
        lanes = parts[group[0]].lanes
        table = Table([change_row(parts[n], changes[n], sign) for n in group], lanes.device)
        moved = new_sums(table)
        lane_bytes, sparse, is_flat = kind(group[0])
        if sparse:
            table.launch(loops.change_some, moved, LANE=LANES[lane_bytes], STORE=True)
        else:
            table.launch(loops.change_all, moved, LANE=LANES[lane_bytes], FLAT=is_flat)
        spread(sums, group, moved)
    return sums


def change_row(part: Part, change: Change, sign: int) -> Row:
    """The row of a part to be changed. The change must outlive the launch."""
    listed = change.positions if isinstance(change, Sparse) else None
    how = loops.XOR if change.operation == "xor" else loops.ADD if sign == 1 else loops.SUBTRACT
    return Row(
        change.num_changes,
        dims_of(part, part.lanes),
        first_index(part),
        how.value,
        a=part.lanes.data_ptr(),
        c=0 if listed is None else listed.data_ptr(),
        d=change.values.data_ptr(),
    )


def new_sums(table: Table) -> Tensor:
    """A sum for each row."""
    return torch.zeros(table.num_rows, dtype=torch.int64, device=table.device)


def spread(sums: list[int], group: Sequence[int], moved: Tensor) -> None:
    """Bring a group's sums to their places. Waits for the device."""
    for n, value in zip(group, moved.tolist(), strict=True):
        sums[n] = value & _MASK


def _flat(part: Part, change: Change) -> bool:
    return not isinstance(change, Sparse) and flat(part.lanes, change.values)


def _contiguous(change: Change) -> Change:
    if isinstance(change, Sparse):
        return Sparse(change.operation, change.positions.contiguous(), change.values.contiguous())
    return type(change)(change.operation, change.values.contiguous())
