# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The loops over lanes that Triton compiles: fingerprint, diff and apply.

Each program works on one chunk of one row of a table (see `table`). All sums and indices are unsigned 64-bit;
program numbers, which are 32-bit, are widened before they are multiplied. FLAT says that tensors are contiguous
and aligned: then whole blocks are read without a mask, in loads as wide as the hardware has; the rest of a
chunk, and tensors with gaps, are read lane by lane. Sums go to one place per row by addition, in any order.
"""

from __future__ import annotations

import triton.language as tl

from deltavc.kernels.gpu.table import (
    COLUMNS,
    COUNT,
    DIMS,
    FIRST,
    HOW,
    INDEX,
    NUM_DIMS,
    A,
    B,
    C,
    D,
    kernel,
)

ADD, SUBTRACT, XOR = map(tl.constexpr, range(3))


@kernel
def mix(z):
    """The finaliser of splitmix64; `reference.mix64` names the sources."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@kernel
def begin(rows, owners, CHUNK: tl.constexpr):
    """This program's row: its number, where it is, and the range that is this program's."""
    program = tl.program_id(0)
    number = tl.load(owners + program).to(tl.int64)
    row = rows + number * COLUMNS
    first = (program.to(tl.int64) - tl.load(row + FIRST)) * CHUNK
    last = tl.minimum(first + CHUNK, tl.load(row + COUNT))
    return number, row, first, last


@kernel
def address(row, COLUMN: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """An address of the row, as a pointer."""
    pointer = tl.load(row + COLUMN).to(tl.pointer_type(TYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@kernel
def load(pointers, inside, WHOLE: tl.constexpr):
    """Load a block, all of it or what is inside."""
    if WHOLE:
        return tl.load(pointers)
    return tl.load(pointers, inside, other=0)


@kernel
def store(pointers, values, inside, WHOLE: tl.constexpr):
    """Store a block, all of it or what is inside."""
    if WHOLE:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, inside)


@kernel
def places(rows, row, positions, FLAT: tl.constexpr):
    """Of positions in the box: what mixing begins with, and where they lie in the memory of `a` and `b`."""
    index = positions * 0 + tl.load(row + INDEX)
    a = positions * 0
    b = positions * 0
    dim = rows + tl.load(row + DIMS)
    rest = positions
    for _dim in range(tl.load(row + NUM_DIMS) - 1):
        length = tl.load(dim)
        up = rest // length
        at = rest - up * length
        index += at * tl.load(dim + 1)
        if not FLAT:
            a += at * tl.load(dim + 2)
            b += at * tl.load(dim + 3)
        rest = up
        dim += 4
    index += rest * tl.load(dim + 1)
    if FLAT:
        a = positions
        b = positions
    else:
        a += rest * tl.load(dim + 2)
        b += rest * tl.load(dim + 3)
    return index.to(tl.uint64) * 0x9E3779B97F4A7C15, a, b


@kernel
def changed(before, value, how):
    """A lane after its change."""
    return tl.where(how == XOR, before ^ value, tl.where(how == SUBTRACT, before - value, before + value))


@kernel
def moved(index, before, after):
    """By how much lanes that change move the fingerprint."""
    return mix(index ^ after.to(tl.uint64)) - mix(index ^ before.to(tl.uint64))


@kernel
def fingerprint(rows, owners, sums, LANE: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Add the mixes of the lanes at `a` to their row's sum."""
    number, row, first, last = begin(rows, owners, CHUNK)
    lanes = address(row, A, LANE, FLAT)
    total = tl.zeros([BLOCK], tl.uint64)
    rest = first
    if FLAT:
        rest = first + (last - first) // BLOCK * BLOCK
        for start in range(first, rest, BLOCK):
            total += _mixes(rows, row, lanes, start, last, FLAT, True, BLOCK)
    for start in range(rest, last, BLOCK):
        total += _mixes(rows, row, lanes, start, last, FLAT, False, BLOCK)
    tl.atomic_add(sums + number, tl.sum(total, 0).to(tl.int64), sem="relaxed")


@kernel
def _mixes(rows, row, lanes, start, last, FLAT: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    positions = start + tl.arange(0, BLOCK)
    inside = positions < last
    index, a, _b = places(rows, row, positions, FLAT)
    mixed = mix(index ^ load(lanes + a, inside, WHOLE).to(tl.uint64))
    if not WHOLE:
        mixed = tl.where(inside, mixed, 0)
    return mixed


@kernel
def _pair(rows, row, old, new, start, last, FLAT: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """A block of old lanes (at `a`; zeros where there are none) and new lanes (at `b`), and what it takes."""
    positions = start + tl.arange(0, BLOCK)
    inside = positions < last
    index, a, b = places(rows, row, positions, FLAT)
    after = load(new + b, inside, WHOLE)
    before = after ^ after
    if tl.load(row + A) != 0:
        before = load(old + a, inside, WHOLE)
    return positions, inside, index, before, after


@kernel
def count_changed(
    rows, owners, counts, LANE: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    """Count the lanes that differ between `a` and `b`, one count for each program."""
    _number, row, first, last = begin(rows, owners, CHUNK)
    old, new = address(row, A, LANE, FLAT), address(row, B, LANE, FLAT)
    found = tl.zeros([BLOCK], tl.int32)
    rest = first
    if FLAT:
        rest = first + (last - first) // BLOCK * BLOCK
        for start in range(first, rest, BLOCK):
            _positions, _inside, _index, before, after = _pair(rows, row, old, new, start, last, FLAT, True, BLOCK)
            found += (before != after).to(tl.int32)
    for start in range(rest, last, BLOCK):
        _positions, _inside, _index, before, after = _pair(rows, row, old, new, start, last, FLAT, False, BLOCK)
        found += (before != after).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(found, 0).to(tl.int64))


@kernel
def list_changed(
    rows,
    owners,
    counts,
    ends,
    listed_positions,
    listed_values,
    LANE: tl.constexpr,
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """List the lanes that differ: every program its own, up to its end. A count of zero means: none of these."""
    _number, row, first, last = begin(rows, owners, CHUNK)
    old, new = address(row, A, LANE, FLAT), address(row, B, LANE, FLAT)
    how = tl.load(row + HOW)
    count = tl.load(counts + tl.program_id(0))
    if count > 0:
        entry = tl.load(ends + tl.program_id(0)) - count
        rest = first
        if FLAT:
            rest = first + (last - first) // BLOCK * BLOCK
            for start in range(first, rest, BLOCK):
                pair = _pair(rows, row, old, new, start, last, FLAT, True, BLOCK)
                entry += _list(pair, how, listed_positions + entry, listed_values + entry)
        for start in range(rest, last, BLOCK):
            pair = _pair(rows, row, old, new, start, last, FLAT, False, BLOCK)
            entry += _list(pair, how, listed_positions + entry, listed_values + entry)


@kernel
def _list(pair, how, listed_positions, listed_values):
    positions, _inside, _index, before, after = pair
    differ = before != after
    place = tl.cumsum(differ.to(tl.int32), 0) - 1
    tl.store(listed_positions + place, positions, differ)
    tl.store(listed_values + place, tl.where(how == XOR, after ^ before, after - before), differ)
    return tl.sum(differ.to(tl.int32), 0)


@kernel
def difference(rows, owners, sums, LANE: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Write to `d` every lane's difference from `a` to `b`."""
    number, row, first, last = begin(rows, owners, CHUNK)
    old, new, out = address(row, A, LANE, FLAT), address(row, B, LANE, FLAT), address(row, D, LANE, FLAT)
    total = tl.zeros([BLOCK], tl.uint64)
    rest = first
    if FLAT:
        rest = first + (last - first) // BLOCK * BLOCK
        for start in range(first, rest, BLOCK):
            total += _differences(rows, row, old, new, out, start, last, FLAT, True, BLOCK)
    for start in range(rest, last, BLOCK):
        total += _differences(rows, row, old, new, out, start, last, FLAT, False, BLOCK)
    tl.atomic_add(sums + number, tl.sum(total, 0).to(tl.int64), sem="relaxed")


@kernel
def _differences(rows, row, old, new, out, start, last, FLAT: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    positions, inside, index, before, after = _pair(rows, row, old, new, start, last, FLAT, WHOLE, BLOCK)
    value = tl.where(tl.load(row + HOW) == XOR, after ^ before, after - before)
    store(out + positions, value, inside, WHOLE)
    return moved(index, before, after)


@kernel
def change_all(rows, owners, sums, LANE: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Change every lane at `a` by its value at `d`, in place."""
    number, row, first, last = begin(rows, owners, CHUNK)
    lanes, values = address(row, A, LANE, FLAT), address(row, D, LANE, FLAT)
    total = tl.zeros([BLOCK], tl.uint64)
    rest = first
    if FLAT:
        rest = first + (last - first) // BLOCK * BLOCK
        for start in range(first, rest, BLOCK):
            total += _change(rows, row, lanes, values, start, last, FLAT, True, BLOCK)
    for start in range(rest, last, BLOCK):
        total += _change(rows, row, lanes, values, start, last, FLAT, False, BLOCK)
    tl.atomic_add(sums + number, tl.sum(total, 0).to(tl.int64), sem="relaxed")


@kernel
def _change(rows, row, lanes, values, start, last, FLAT: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    positions = start + tl.arange(0, BLOCK)
    inside = positions < last
    index, a, _b = places(rows, row, positions, FLAT)
    before = load(lanes + a, inside, WHOLE)
    after = changed(before, load(values + positions, inside, WHOLE), tl.load(row + HOW))
    store(lanes + a, after, inside, WHOLE)
    if WHOLE:
        return moved(index, before, after)
    return tl.where(inside, moved(index, before, after), 0)


@kernel
def change_some(rows, owners, sums, LANE: tl.constexpr, STORE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Change the lanes at `a` whose positions are listed at `c`, by the values at `d`; or only say what it moves."""
    number, row, first, last = begin(rows, owners, CHUNK)
    lanes, values = address(row, A, LANE, False), address(row, D, LANE, False)
    listed = address(row, C, tl.int64, False)
    how = tl.load(row + HOW)
    total = tl.zeros([BLOCK], tl.uint64)
    for start in range(first, last, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < last
        index, a, _b = places(rows, row, tl.load(listed + entries, inside, other=0), False)
        before = tl.load(lanes + a, inside, other=0)
        after = changed(before, tl.load(values + entries, inside, other=0), how)
        if STORE:
            tl.store(lanes + a, after, inside)
        total += tl.where(inside, moved(index, before, after), 0)
    tl.atomic_add(sums + number, tl.sum(total, 0).to(tl.int64), sem="relaxed")
