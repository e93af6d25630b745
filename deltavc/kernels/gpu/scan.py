"""Diff on a device: what changed is counted, listed and summed there, and never more than that is allocated.

    count    how many lanes of each program's chunk differ            reads old and new
    list     positions and values, each program from its place on     reads old and new
    sum      by how much the fingerprint moves                        reads the list, and new at its positions

The host waits twice: for the number of changes, which says how much memory the list takes and whether the
change is dense instead (then one launch writes and sums every lane's difference), and for the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from deltavc.change import Change, Dense, Operation, Sparse
from deltavc.kernels.gpu import loops
from deltavc.kernels.gpu.lanes import apply_all, change_row, new_sums, spread
from deltavc.kernels.gpu.table import LANES, Row, Table, dims_of, first_index, flat, groups
from deltavc.kernels.part import Part

_MASK = (1 << 64) - 1


def diff_all(
    olds: Sequence[Tensor | None],
    parts: Sequence[Part],
    max_sparse: Sequence[int],
    operation: Operation,
    advancing: bool,
) -> list[tuple[Change, int]]:
    """`kernels.diff_all` of parts on one device; Dense where more than `max_sparse` lanes changed."""
    found: list[tuple[Change, int] | None] = [None] * len(parts)
    for group in groups(range(len(parts)), lambda n: (parts[n].lanes.element_size(), flat(olds[n], parts[n].lanes))):
        jobs = [olds[n] for n in group], [parts[n] for n in group], [max_sparse[n] for n in group]
        for n, result in zip(group, _diff(*jobs, operation), strict=True):
            found[n] = result
    results = [result for result in found if result is not None]
    if advancing:
        advance(olds, parts, [change for change, _ in results])
    return results


def _diff(
    olds: list[Tensor | None], parts: list[Part], max_sparse: list[int], operation: Operation
) -> list[tuple[Change, int]]:
    listed = [n for n in range(len(parts)) if max_sparse[n] >= 0]
    changes: dict[int, Change] = {}
    if listed:
        bounds = [max_sparse[n] for n in listed]
        lists = _list([olds[n] for n in listed], [parts[n] for n in listed], bounds, operation)
        changes = {n: change for n, change in zip(listed, lists, strict=True) if change is not None}
    moved = [0] * len(parts)
    _sum_lists(parts, changes, moved)
    rest = [n for n in range(len(parts)) if n not in changes]
    changes |= _differences(olds, parts, rest, operation, moved)
    return [(changes[n], moved[n]) for n in range(len(parts))]


def _list(
    olds: list[Tensor | None], parts: list[Part], max_sparse: list[int], operation: Operation
) -> list[Sparse | None]:
    """The changes of parts as lists, or None where more than `max_sparse` lanes changed."""
    lanes = parts[0].lanes
    table = Table([_row(old, part, operation) for old, part in zip(olds, parts, strict=True)], lanes.device)
    kind = {"LANE": LANES[lanes.element_size()], "FLAT": flat(olds[0], lanes)}
    counts = torch.zeros(table.num_programs, dtype=torch.int64, device=lanes.device)
    table.launch(loops.count_changed, counts, **kind)
    ends = counts.cumsum(0)
    bounds = _ends_of_rows(ends, table)
    totals = [after - before for before, after in pairwise(bounds)]
    kept = [total <= most for total, most in zip(totals, max_sparse, strict=True)]
    if not all(kept):
        wanted = torch.tensor(kept, device=lanes.device)[table.owners.long()]
        counts = torch.where(wanted, counts, 0)
        ends = counts.cumsum(0)
        totals = [total if keep else 0 for total, keep in zip(totals, kept, strict=True)]
    positions = torch.empty(sum(totals), dtype=torch.int64, device=lanes.device)
    values = torch.empty(sum(totals), dtype=lanes.dtype, device=lanes.device)
    if sum(totals):
        table.launch(loops.list_changed, counts, ends, positions, values, **kind)
    slices = zip(torch.split(positions, totals), torch.split(values, totals), kept, strict=True)
    return [Sparse(operation, where, what) if keep else None for where, what, keep in slices]


def _ends_of_rows(ends: Tensor, table: Table) -> list[int]:
    """How many changes lie before each row, and at last before the end. Waits for the device."""
    bounds = torch.cat((ends.new_zeros(1), ends))
    found: list[int] = bounds[torch.tensor(table.firsts, device=ends.device)].tolist()
    return found


def _sum_lists(parts: list[Part], changes: dict[int, Change], moved: list[int]) -> None:
    """Sum what listed changes move: taking one back from the new lanes moves the fingerprint by minus that."""
    if not changes:
        return
    lanes = parts[0].lanes
    table = Table([change_row(parts[n], change, -1) for n, change in changes.items()], lanes.device)
    sums = new_sums(table)
    table.launch(loops.change_some, sums, LANE=LANES[lanes.element_size()], STORE=False)
    spread(moved, list(changes), sums)
    for n in changes:
        moved[n] = -moved[n] & _MASK


def _differences(
    olds: list[Tensor | None], parts: list[Part], numbers: list[int], operation: Operation, moved: list[int]
) -> dict[int, Change]:
    """The changes of parts as a value for every lane."""
    if not numbers:
        return {}
    lanes = parts[0].lanes
    changes: dict[int, Change] = {
        n: Dense(operation, torch.empty(parts[n].lanes.numel(), dtype=lanes.dtype, device=lanes.device))
        for n in numbers
    }
    rows = [_row(olds[n], parts[n], operation, changes[n].values) for n in numbers]
    table = Table(rows, lanes.device)
    sums = new_sums(table)
    is_flat = flat(
        *[olds[n] for n in numbers], *[parts[n].lanes for n in numbers], *[c.values for c in changes.values()]
    )
    table.launch(loops.difference, sums, LANE=LANES[lanes.element_size()], FLAT=is_flat)
    spread(moved, numbers, sums)
    return changes


def _row(old: Tensor | None, part: Part, operation: Operation, values: Tensor | None = None) -> Row:
    first = part.lanes if old is None else old
    return Row(
        part.lanes.numel(),
        dims_of(part, first, part.lanes),
        first_index(part),
        loops.XOR.value if operation == "xor" else loops.ADD.value,
        a=0 if old is None else old.data_ptr(),
        b=part.lanes.data_ptr(),
        d=0 if values is None else values.data_ptr(),
    )


def advance(olds: Sequence[Tensor | None], parts: Sequence[Part], changes: list[Change]) -> None:
    """Make old lanes the new ones; after an interrupt, they are again what they were."""
    held = [(old, part) for old, part in zip(olds, parts, strict=True) if old is not None]
    targets = [Part(old, part.box, part.shape) for old, part in held]
    try:
        apply_all(targets, changes, 1)
    except BaseException:
        # Whichever lanes the launch has reached: all are made new, and then old.
        for old, part in held:
            old.copy_(part.lanes)
        apply_all(targets, changes, -1)
        raise
