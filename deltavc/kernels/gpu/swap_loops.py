# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The loops of a live update that Triton compiles: gather, compare and write.

A row is one segment of a staged change: memory at `a`, old lanes at `b`, new ones at `d`; with LISTED, the
offsets of the lanes in the memory at `c`, otherwise they are a block that begins at `a`.
"""

from __future__ import annotations

import triton.language as tl

from deltavc.kernels.gpu.loops import address, begin, load, store
from deltavc.kernels.gpu.table import INDEX, A, B, C, D, kernel


@kernel
def gather(rows, owners, LANE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Copy the listed lanes to `d`."""
    _number, row, first, last = begin(rows, owners, CHUNK)
    memory, out = address(row, A, LANE, False), address(row, D, LANE, False)
    listed = address(row, C, tl.int64, False)
    for start in range(first, last, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < last
        tl.store(out + entries, tl.load(memory + tl.load(listed + entries, inside, other=0), inside, other=0), inside)


@kernel
def compare(
    rows,
    owners,
    counts,
    LANE: tl.constexpr,
    LISTED: tl.constexpr,
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Count the lanes that are not the old ones: all of them in counts[0], a segment's in counts[1 + its number]."""
    _number, row, first, last = begin(rows, owners, CHUNK)
    memory, old = address(row, A, LANE, FLAT), address(row, B, LANE, FLAT)
    listed = address(row, C, tl.int64, False)
    found = tl.zeros([BLOCK], tl.int32)
    rest = first
    if FLAT:
        rest = first + (last - first) // BLOCK * BLOCK
        for start in range(first, rest, BLOCK):
            found += _differ(memory, listed, old, start, last, LISTED, True, BLOCK)
    for start in range(rest, last, BLOCK):
        found += _differ(memory, listed, old, start, last, LISTED, False, BLOCK)
    total = tl.sum(found, 0).to(tl.int64)
    if total > 0:
        tl.atomic_add(counts, total, sem="relaxed")
        tl.atomic_add(counts + 1 + tl.load(row + INDEX), total, sem="relaxed")


@kernel
def write(
    rows,
    owners,
    counts,
    LANE: tl.constexpr,
    LISTED: tl.constexpr,
    FLAT: tl.constexpr,
    OLD: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the new lanes, or the old ones, unless `compare` counted any."""
    _number, row, first, last = begin(rows, owners, CHUNK)
    memory, values = address(row, A, LANE, FLAT), address(row, B if OLD else D, LANE, FLAT)
    listed = address(row, C, tl.int64, False)
    if tl.load(counts) == 0:
        rest = first
        if FLAT:
            rest = first + (last - first) // BLOCK * BLOCK
            for start in range(first, rest, BLOCK):
                _put(memory, listed, values, start, last, LISTED, True, BLOCK)
        for start in range(rest, last, BLOCK):
            _put(memory, listed, values, start, last, LISTED, False, BLOCK)


@kernel
def _differ(memory, listed, old, start, last, LISTED: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    entries = start + tl.arange(0, BLOCK)
    inside = entries < last
    offsets = entries
    if LISTED:
        offsets = tl.load(listed + entries, inside, other=0)
    return (load(memory + offsets, inside, WHOLE) != load(old + entries, inside, WHOLE)).to(tl.int32)


@kernel
def _put(memory, listed, values, start, last, LISTED: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    entries = start + tl.arange(0, BLOCK)
    inside = entries < last
    offsets = entries
    if LISTED:
        offsets = tl.load(listed + entries, inside, other=0)
    store(memory + offsets, load(values + entries, inside, WHOLE), inside, WHOLE)
