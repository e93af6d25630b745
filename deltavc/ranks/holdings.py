"""Holdings: who of a group holds which boxes of a version's tensors, and how that adds up to whole tensors.

    q, rows 0-3   rank 0 ─┐                                    norm   rank 0 ──> fingerprint of the whole
    q, rows 4-7   rank 1 ─┴─> fingerprint of the whole                rank 1 ──> the same, or they differ

A fingerprint is a sum over lanes, so the shares of boxes add up to the whole tensor's. A box that several ranks hold
is counted once, for the first of them; the others' differences from the first must add up to nothing. So 8 bytes a
tensor travel, and 8 more for a tensor that has copies, whatever the arrangement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deltavc.bound import Bound
from deltavc.change import Box, overlapping
from deltavc.errors import CopiesDiffer, LayoutMismatch
from deltavc.layout import Layout
from deltavc.live import stored_name
from deltavc.ranks.exchange import signed, unsigned

_Piece = tuple[str, Box]
"""A stored tensor's name, and a box of it."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """One rank's cell that holds a piece. A rank may hold a piece twice, under names that the version ties."""

    rank: int
    cell: int


def description(bound: Bound, ignored: Sequence[str]) -> bytes:
    """What a rank holds, for the others. ignored: checkpoint names that it was told need not be held."""
    cells = [(bound.stored(cell.name), cell.box.offsets, cell.box.lengths) for cell in bound.cells]
    return json.dumps({"cells": cells, "ignored": sorted(ignored)}).encode()


class Holdings:
    """What the ranks of a group hold of a version.

    Args:
        rank: which of them this is. descriptions: `description` of each rank, by rank.

    Raises:
        LayoutMismatch: boxes of different ranks that overlap without being equal; lanes that no rank holds, of a
            tensor that not one of them ignores, or of one that is held in part.
    """

    def __init__(self, layout: Layout, rank: int, descriptions: Sequence[bytes]) -> None:
        told = [json.loads(body) for body in descriptions]
        pieces: dict[_Piece, list[_Copy]] = {}
        mine: list[_Piece] = []
        for holder, each in enumerate(told):
            for number, (name, offsets, lengths) in enumerate(each["cells"]):
                piece = name, Box(tuple(offsets), tuple(lengths))
                pieces.setdefault(piece, []).append(_Copy(holder, number))
                if holder == rank:
                    mine.append(piece)
        boxes: dict[str, list[Box]] = {}
        for name, box in pieces:
            boxes.setdefault(name, []).append(box)
        _check_cover(layout, boxes, pieces, {name for each in told for name in each["ignored"]})
        self._rank = rank
        self._pieces = pieces
        self._mine = mine
        self._whole = [*boxes]
        self._copied = [*dict.fromkeys(name for (name, _), copies in pieces.items() if len(copies) > 1)]
        empty = (layout.tensors[place] for place in layout.stored)
        self._empty = [tensor.name for tensor in empty if not tensor.num_lanes]
        self._where, self._weights = self._terms()

    def terms(self, shares: Sequence[int]) -> Tensor:
        """What this rank adds to the sums, from the fingerprints of its cells.

        Returns:
            int64, shape (n,): its part of every tensor that the group holds, then its part of the differences between
            copies of every tensor of which there are some.
        """
        terms = torch.zeros(len(self._whole) + len(self._copied), dtype=torch.int64)
        every = signed(shares)
        for where, weights in zip(self._where, self._weights, strict=True):
            terms.index_add_(0, where, every * weights)
        return terms

    def totals(self, sums: Tensor) -> dict[str, int]:
        """The fingerprint of every tensor that the group holds, by stored name, from the sum of all ranks' terms."""
        return dict.fromkeys(self._empty, 0) | dict(zip(self._whole, unsigned(sums), strict=False))

    def differing(self, sums: Tensor) -> list[str]:
        """Stored names of tensors of which ranks hold different copies."""
        differences = sums[len(self._whole) :].tolist()
        return [name for name, difference in zip(self._copied, differences, strict=True) if difference]

    def shares_of(self, name: str, shares: Sequence[int]) -> bytes:
        """This rank's fingerprints of a tensor's boxes, for the others to compare."""
        return json.dumps({cell: shares[cell] for cell, piece in enumerate(self._mine) if piece[0] == name}).encode()

    def difference(self, name: str, told: Sequence[bytes]) -> CopiesDiffer:
        """Who differs from whom. told: `shares_of` of each rank, by rank."""
        values: list[Mapping[str, int]] = [json.loads(body) for body in told]
        differing: dict[int, set[int]] = {}
        for (stored, _), copies in self._pieces.items():
            if stored != name:
                continue
            found: dict[int, set[int]] = {}
            for copy in copies:
                found.setdefault(values[copy.rank][str(copy.cell)], set()).add(copy.rank)
            if len(found) > 1:
                differing = found
                break
        groups = sorted((tuple(sorted(ranks)) for ranks in differing.values()), key=lambda group: (-len(group), group))
        return CopiesDiffer(name, tuple(groups))

    def _terms(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """For each of this rank's cells where it is added, and how often: in the wholes and in the differences."""
        whole = {name: place for place, name in enumerate(self._whole)}
        copied = {name: len(whole) + place for place, name in enumerate(self._copied)}
        rows = []
        for cell, piece in enumerate(self._mine):
            copies = self._pieces[piece]
            first = copies[0] == _Copy(self._rank, cell)
            more = len(copies) - 1
            # Where there is no other copy, nothing is added, wherever.
            rows.append((whole[piece[0]], int(first), copied.get(piece[0], 0), (-more if first else 1) if more else 0))
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)
        return (table[:, 0], table[:, 2]), (table[:, 1], table[:, 3])


def _check_cover(
    layout: Layout, boxes: Mapping[str, Sequence[Box]], pieces: Mapping[_Piece, Sequence[_Copy]], ignored: set[str]
) -> None:
    """Raise LayoutMismatch unless the boxes of every tensor that has to be held make it up, each lane once."""
    named: dict[str, list[str]] = {}
    for tensor in layout.tensors:
        named.setdefault(stored_name(layout, tensor.name), []).append(tensor.name)
    known: dict[frozenset[Box], tuple[Box, Box] | None] = {}
    for place in layout.stored:
        tensor = layout.tensors[place]
        held = boxes.get(tensor.name, ())
        if not held:
            if tensor.num_lanes and not ignored.issuperset(named[tensor.name]):
                reason = "is in the version, and no rank holds it: bind it on one with bindings=, or name it in ignore="
                raise LayoutMismatch(tensor.name, reason)
            continue
        arrangement = frozenset(held)
        if arrangement not in known:
            known[arrangement] = overlapping(held)
        overlap = known[arrangement]
        if overlap is not None:
            one, other = (_ranks(pieces[tensor.name, box]) for box in overlap)
            raise LayoutMismatch(
                tensor.name, f"is held by rank {one} and rank {other} in boxes that overlap without being equal"
            )
        lacking = tensor.num_lanes - sum(box.num_lanes for box in held)
        if lacking:
            raise LayoutMismatch(tensor.name, f"has {lacking} of {tensor.num_lanes} lanes that no rank holds")


def _ranks(copies: Sequence[_Copy]) -> str:
    return ", ".join(map(str, sorted({copy.rank for copy in copies})))
