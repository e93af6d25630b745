"""Lists on a device: positions checked, their lanes' share of a fingerprint, sparse changes merged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from deltavc.change import Sparse
from deltavc.kernels.gpu import list_loops, loops
from deltavc.kernels.gpu.lanes import new_sums, spread
from deltavc.kernels.gpu.table import LANES, Row, Table, dims_of, first_index, groups
from deltavc.kernels.part import Listed


def ascend_all(lists: Sequence[Tensor], bounds: Sequence[int]) -> list[bool]:
    """Whether the positions of each list lie below its bound and rise strictly. Waits for the device."""
    held = [positions.contiguous() for positions in lists]
    rows = [
        Row(positions.numel(), index=bound, c=positions.data_ptr())
        for positions, bound in zip(held, bounds, strict=True)
    ]
    table = Table(rows, held[0].device)
    counts = new_sums(table)
    table.launch(list_loops.count_misplaced, counts)
    return [count == 0 for count in counts.tolist()]


def moved_all(lists: Sequence[Listed]) -> list[int]:
    """`kernels.moved_all` of lists that were checked, on one device."""
    sums = [0] * len(lists)
    for group in groups(range(len(lists)), lambda n: lists[n].new.element_size()):
        held = [[one.contiguous() for one in (lists[n].old, lists[n].new, lists[n].positions)] for n in group]
        rows = [
            Row(
                positions.numel(),
                dims_of(lists[n]),
                first_index(lists[n]),
                a=old.data_ptr(),
                b=new.data_ptr(),
                c=positions.data_ptr(),
            )
            for n, (old, new, positions) in zip(group, held, strict=True)
        ]
        table = Table(rows, lists[group[0]].new.device)
        moved = new_sums(table)
        table.launch(list_loops.moved_some, moved, LANE=LANES[lists[group[0]].new.element_size()])
        spread(sums, group, moved)
    return sums


def merge_all(firsts: Sequence[Sparse], seconds: Sequence[Sparse]) -> list[Sparse]:
    """`kernels.compose` of sparse changes in pairs, on one device."""
    merged: dict[int, Sparse] = {}
    kinds = groups(range(len(firsts)), lambda n: (firsts[n].values.element_size(), firsts[n].operation))
    for group in kinds:
        found = _merge([firsts[n] for n in group], [seconds[n] for n in group])
        merged |= dict(zip(group, found, strict=True))
    return [merged[n] for n in range(len(firsts))]


def _merge(firsts: list[Sparse], seconds: list[Sparse]) -> list[Sparse]:
    operation = firsts[0].operation
    how = (loops.XOR if operation == "xor" else loops.ADD).value
    rows: list[Row] = []
    begins = [0]
    held = []
    for first, second in zip(firsts, seconds, strict=True):
        pair = [(one.positions.contiguous(), one.values.contiguous()) for one in (first, second)]
        held.append(pair)
        places = begins[-1], begins[-1] + first.num_changes
        for own, other in ((0, 1), (1, 0)):
            rows.append(
                Row(
                    pair[own][0].numel(),
                    index=pair[other][0].numel(),
                    how=how,
                    a=pair[other][0].data_ptr(),
                    b=pair[other][1].data_ptr(),
                    c=pair[own][0].data_ptr(),
                    d=pair[own][1].data_ptr(),
                    steps=pair[other][0].numel().bit_length(),
                    own=places[own],
                    other=places[other],
                )
            )
        begins.append(places[1] + second.num_changes)

    values = firsts[0].values
    lane = LANES[values.element_size()]
    table = Table(rows, values.device)
    ranks = torch.empty(begins[-1], dtype=torch.int64, device=values.device)
    # One more at the front: after the sum, every entry says how many are kept before it.
    starts = torch.zeros(begins[-1] + 1, dtype=torch.int64, device=values.device)
    table.launch(list_loops.match, ranks, starts[1:], LANE=lane)
    starts = starts.cumsum(0)
    bounds: list[int] = starts[torch.tensor(begins, device=values.device)].tolist()
    merged_positions = torch.empty(bounds[-1], dtype=torch.int64, device=values.device)
    merged_values = torch.empty(bounds[-1], dtype=values.dtype, device=values.device)
    table.launch(list_loops.emit, ranks, starts, merged_positions, merged_values, LANE=lane)
    sizes = [after - before for before, after in pairwise(bounds)]
    pieces = zip(torch.split(merged_positions, sizes), torch.split(merged_values, sizes), strict=True)
    return [Sparse(operation, where, what) for where, what in pieces]
