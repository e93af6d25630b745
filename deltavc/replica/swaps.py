"""Swaps: what is staged, ready to be written over live lanes, all of it or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltavc.kernels import SwapTable


@dataclass(frozen=True, slots=True)
class Swap:
    """What is staged on one device, and the name of each segment's tensor."""

    table: SwapTable
    names: list[str]


def swap_all(swaps: Sequence[Swap]) -> tuple[str, ...]:
    """Write all new lanes if all live ones are the old ones. Returns the names of tensors that have others."""
    if len(swaps) == 1:
        return _foreign(swaps, [swaps[0].table.swap()])
    foreign = compare_all(swaps)
    if not foreign:
        write_all(swaps)
    return foreign


def compare_all(swaps: Sequence[Swap]) -> tuple[str, ...]:
    """The names of tensors of which live lanes are not the old ones. Writes nothing."""
    return _foreign(swaps, [swap.table.compare() for swap in swaps])


def write_all(swaps: Sequence[Swap]) -> None:
    """Write all new lanes, whatever is there."""
    for swap in swaps:
        swap.table.write_new()


def undo_all(swaps: Sequence[Swap]) -> None:
    """Write all old lanes, whatever is there."""
    for swap in swaps:
        swap.table.write_old()


def _foreign(swaps: Sequence[Swap], counts: Sequence[Sequence[int]]) -> tuple[str, ...]:
    foreign = {
        name
        for swap, found in zip(swaps, counts, strict=True)
        for name, count in zip(swap.names, found, strict=True)
        if count
    }
    return tuple(sorted(foreign))
