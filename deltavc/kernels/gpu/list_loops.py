# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The loops over lists that Triton compiles: positions checked, fingerprints moved, two sparse changes merged.

Merging knows where an entry goes without looking at its neighbours: behind the entries of its own list before
it, and behind those of the other list with lower positions, which a binary search counts. Both counts are of
entries that are kept: `starts` holds how many of all lists end to end are kept before each.
"""

from __future__ import annotations

import triton.language as tl

from deltavc.kernels.gpu.loops import XOR, address, begin, moved, places
from deltavc.kernels.gpu.table import HOW, INDEX, OTHER, OWN, STEPS, A, B, C, D, kernel


@kernel
def count_misplaced(rows, owners, counts, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Count the positions at `c` that do not rise, or lie outside of a box of `index` lanes."""
    number, row, first, last = begin(rows, owners, CHUNK)
    listed = address(row, C, tl.int64, False)
    bound = tl.load(row + INDEX)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(first, last, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < last
        positions = tl.load(listed + entries, inside, other=0)
        lower = tl.load(listed + entries - 1, inside & (entries > 0), other=-1)
        found += (inside & ((positions <= lower) | (positions >= bound))).to(tl.int32)
    total = tl.sum(found, 0)
    if total > 0:
        tl.atomic_add(counts + number, total.to(tl.int64), sem="relaxed")


@kernel
def moved_some(rows, owners, sums, LANE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Add by how much the fingerprint moves when the lanes listed at `c` go from those at `a` to those at `b`."""
    number, row, first, last = begin(rows, owners, CHUNK)
    old, new = address(row, A, LANE, False), address(row, B, LANE, False)
    listed = address(row, C, tl.int64, False)
    total = tl.zeros([BLOCK], tl.uint64)
    for start in range(first, last, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < last
        # FLAT: of the places only the indices are wanted, and there are no strides to look up.
        index, _a, _b = places(rows, row, tl.load(listed + entries, inside, other=0), True)
        # Where nothing is inside, both are zero and cancel out.
        before, after = tl.load(old + entries, inside, other=0), tl.load(new + entries, inside, other=0)
        total += moved(index, before, after)
    tl.atomic_add(sums + number, tl.sum(total, 0).to(tl.int64), sem="relaxed")


@kernel
def match(rows, owners, ranks, kept, LANE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Find how many entries of the other list lie before each of this one's, and which of this one's are kept.

    A row is one list: positions at `c`, values at `d`, the other's at `a` and `b`; `index` entries has the other.
    """
    _number, row, first, last = begin(rows, owners, CHUNK)
    own, other = address(row, C, tl.int64, False), address(row, A, tl.int64, False)
    num_others, steps, place = tl.load(row + INDEX), tl.load(row + STEPS), tl.load(row + OWN)
    for start in range(first, last, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < last
        positions = tl.load(own + entries, inside, other=0)
        low = entries * 0
        high = low + num_others
        for _step in range(steps):
            open_ = inside & (low < high)
            middle = (low + high) >> 1
            right = open_ & (tl.load(other + middle, open_, other=0) < positions)
            high = tl.where(open_ & (right == 0), middle, high)
            low = tl.where(right, middle + 1, low)
        _positions, value, paired = _combined(row, entries, inside, low, LANE)
        # The first list speaks for both where they meet.
        keep = (value != 0) & ((paired == 0) | (place < tl.load(row + OTHER)))
        tl.store(ranks + place + entries, low, inside)
        tl.store(kept + place + entries, keep.to(tl.int64), inside)


@kernel
def emit(
    rows,
    owners,
    ranks,
    starts,
    merged_positions,
    merged_values,
    LANE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the entries that are kept to their places in the merged list."""
    _number, row, first, last = begin(rows, owners, CHUNK)
    place, other = tl.load(row + OWN), tl.load(row + OTHER)
    # Lists lie in pairs, first and second; what is kept of the first counts once.
    base = tl.load(starts + tl.maximum(place, other))
    for start in range(first, last, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < last
        rank = tl.load(ranks + place + entries, inside, other=0)
        before = tl.load(starts + place + entries, inside, other=0)
        keep = inside & (tl.load(starts + place + entries + 1, inside, other=0) > before)
        listed, value, _paired = _combined(row, entries, keep, rank, LANE)
        at = before + tl.load(starts + other + rank, inside, other=0) - base
        tl.store(merged_positions + at, listed, keep)
        tl.store(merged_values + at, value, keep)


@kernel
def _combined(row, entries, inside, rank, LANE: tl.constexpr):
    """Positions, their values with those of the other list, and whether the other list has them too."""
    positions = tl.load(address(row, C, tl.int64, False) + entries, inside, other=0)
    value = tl.load(address(row, D, LANE, False) + entries, inside, other=0)
    known = inside & (rank < tl.load(row + INDEX))
    paired = known & (tl.load(address(row, A, tl.int64, False) + rank, known, other=0) == positions)
    more = tl.load(address(row, B, LANE, False) + rank, paired, other=0)
    return positions, tl.where(tl.load(row + HOW) == XOR, value ^ more, value + more), paired
