"""Sums: one row of 64-bit numbers from each rank, which added up say what all of them hold together.

    after    for each stored tensor, the rank's share of its fingerprint in the new state
    before   the same in the state that the changes were taken from
    changed  for each stored tensor, whether the rank changed any of it
    copies   for each tensor of which there are copies, how they differ: nothing, if they are equal

A fingerprint is a sum over lanes, so shares add up to it. For copies, the owner's fingerprint counts against
those of the others. 8 bytes a number travel, however large the tensors are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deltavc import kernels
from deltavc.change import Box
from deltavc.errors import CopiesDiffer
from deltavc.fingerprints import MODULUS
from deltavc.kernels import Part
from deltavc.ranks.exchange import signed, unsigned
from deltavc.sharded.arrangement import Arrangement, Copied
from deltavc.taking import View


@dataclass(frozen=True, slots=True)
class Sums:
    """What the rows of all ranks add up to: fingerprints by stored name, and names."""

    after: Mapping[str, int]
    before: Mapping[str, int]
    changed: frozenset[str]
    differing: Sequence[str]


class Rows:
    """How the rows of an arrangement are laid out."""

    def __init__(self, arrangement: Arrangement) -> None:
        self._names = [arrangement.layout.tensors[place].name for place in arrangement.layout.stored]
        self._copied = [*dict.fromkeys(copied.name for copied in arrangement.copied)]

    def of(
        self,
        rank: int,
        after: Mapping[str, int],
        before: Mapping[str, int],
        changed: frozenset[str],
        copies: Mapping[Copied, int],
    ) -> Tensor:
        """A rank's row: int64, shape (n,). copies: the fingerprints of the boxes that others hold too."""
        differences = dict.fromkeys(self._copied, 0)
        for copied, value in copies.items():
            weight = 1 - len(copied.ranks) if copied.owner == rank else 1
            differences[copied.name] = (differences[copied.name] + weight * value) % MODULUS
        values = [*(after[name] for name in self._names), *(before.get(name, 0) for name in self._names)]
        return torch.cat(
            [
                signed(values),
                torch.tensor([name in changed for name in self._names], dtype=torch.int64),
                signed([*differences.values()]),
            ]
        )

    def read(self, total: Tensor) -> Sums:
        """The sum of all rows."""
        count = len(self._names)
        after, before, changed, differences = torch.split(total, [count, count, count, len(self._copied)])
        return Sums(
            dict(zip(self._names, unsigned(after), strict=True)),
            dict(zip(self._names, unsigned(before), strict=True)),
            frozenset(name for name, times in zip(self._names, changed.tolist(), strict=True) if times),
            [name for name, value in zip(self._copied, differences.tolist(), strict=True) if value],
        )


def copies_of(
    view: View, arrangement: Arrangement, rank: int, owned: Mapping[tuple[str, Box], int], memory: int
) -> dict[Copied, int]:
    """The fingerprint of each box that this rank holds and others too.

    Args:
        owned: those of the boxes that it writes, by name and box. memory: bytes that reading the others may take.
    """
    layout = arrangement.layout
    mine = [copied for copied in arrangement.copied if rank in copied.ranks]
    found = {copied: owned[copied.name, copied.box] for copied in mine if copied.owner == rank}
    others = (copied for copied in mine if copied.owner != rank)

    def nbytes(copied: Copied) -> int:
        return copied.box.num_lanes * layout.tensors[layout.place[copied.name]].lane_bytes

    for batch in kernels.batches(others, nbytes, memory // 8):
        parts = [
            Part(view.lanes(each.name, each.box), each.box, layout.tensors[layout.place[each.name]].lane_shape)
            for each in batch
        ]
        found |= zip(batch, kernels.fingerprint_all(parts), strict=True)
    return found


def difference(name: str, told: Sequence[Mapping[str, int]], arrangement: Arrangement) -> CopiesDiffer:
    """Who differs from whom.

    Args:
        told: for each rank, the fingerprints of its copies of this tensor, by `label`.
    """
    for copied in arrangement.copied:
        if copied.name != name:
            continue
        groups: dict[int, list[int]] = {}
        for rank in copied.ranks:
            groups.setdefault(told[rank][label(copied)], []).append(rank)
        if len(groups) > 1:
            return CopiesDiffer(
                name, tuple(sorted(map(tuple, groups.values()), key=lambda ranks: (-len(ranks), ranks)))
            )
    raise AssertionError("copies whose fingerprints agree add up to no difference")


def label(copied: Copied) -> str:
    """Which box of its tensor it is, as a name in JSON."""
    return ",".join(map(str, copied.box.offsets))
