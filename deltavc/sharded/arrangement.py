"""Arrangements: who of many ranks holds what of a state, and who writes it.

    rank 0   embed, rows 0-3    norm (all of it)        embed is whole: nothing is missing, nothing twice
    rank 1   embed, rows 4-7    norm                    norm has two copies: one of them is written, both are compared

All ranks work it out from the same descriptions, and so to the same end; what they found is exchanged again only when
some rank holds something else. Boxes that several ranks hold are cut into frames, so that large ones are shared out.

There may be millions of pieces, ranks times tensors, but tensors are cut in few ways. What there is to find out of a
cut is found out once, and a piece costs no more than a look at its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deltavc.change import Box, overlapping
from deltavc.delta.frames import frame_boxes
from deltavc.errors import BadState
from deltavc.layout import Layout, TensorSpec
from deltavc.packing import FRAME_BYTES
from deltavc.sharded.pieces import Told

Ranks: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """A box that several ranks hold. owner: the one of them that writes it."""

    name: str
    box: Box
    ranks: Ranks
    owner: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What the ranks of a group hold together, as one of them needs to know it.

    layout: of the whole state. owned: the boxes that this rank writes of each stored tensor. copied: the boxes that
    more than one rank holds. files: the rank that keeps each of the files that came with the state.
    """

    layout: Layout
    owned: Mapping[str, Sequence[Box]]
    copied: Sequence[Copied]
    files: Mapping[str, int]

    @classmethod
    def of(cls, told: Told, rank: int) -> Arrangement:
        """Arrange what each rank says it holds.

        Args:
            rank: which of them this is.

        Raises:
            BadState: no rank holds anything; ranks disagree on a tensor's dtype or shape; boxes overlap without being
                equal; some lanes are held by none. Names the tensor and the ranks.
        """
        columns = _columns(told)
        layout = _layout(told, columns)
        cuts = _cuts(told, columns, layout, rank)
        _check_cover(layout, cuts)
        owned, copied = _shared_out(layout, cuts, rank)
        files: dict[str, int] = {}
        for holder, description in enumerate(told.ranks):
            for name in description.files:
                files.setdefault(name, holder)
        return cls(layout, owned, copied, files)


@dataclass(frozen=True, slots=True)
class _Column:
    """A tensor as some ranks hold it that hold pieces of the same tensors. numbers: of each one's box."""

    tensor: TensorSpec
    group: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Columns:
    """All of them. groups: the ranks of each, those with the lowest rank first."""

    groups: Sequence[Ranks]
    columns: Sequence[_Column]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A way in which ranks hold a tensor. Only boxes with lanes count.

    held: who holds each box. met: two boxes that overlap, if any do. alone: how many lanes each rank holds that no
    other does, shape (ranks,). mine: the boxes of those that are this rank's. shared: boxes that several ranks hold.
    """

    held: Mapping[Box, Ranks]
    met: tuple[Box, Box] | None
    num_lanes: int
    alone: npt.NDArray[np.int64]
    mine: tuple[Box, ...]
    shared: Sequence[tuple[Box, Ranks]]

    @classmethod
    def of(cls, pieces: Sequence[tuple[int, Box]], size: int, rank: int) -> _Cut:
        """That of the pieces of so many ranks, by rank; rank: this one."""
        found: dict[Box, list[int]] = {}
        for holder, box in pieces:
            if box.num_lanes:
                found.setdefault(box, []).append(holder)
        held = {box: tuple(ranks) for box, ranks in found.items()}
        alone = np.zeros(size, np.int64)
        for box, ranks in held.items():
            if len(ranks) == 1:
                alone[ranks[0]] += box.num_lanes
        return cls(
            held,
            overlapping([*held]) if len(held) > 1 else None,
            sum(box.num_lanes for box in held),
            alone,
            tuple(box for box, ranks in held.items() if ranks == (rank,)),
            [(box, ranks) for box, ranks in held.items() if len(ranks) > 1],
        )


def _columns(told: Told) -> _Columns:
    alike: dict[int, list[int]] = {}
    for rank, description in enumerate(told.ranks):
        alike.setdefault(id(description.tensors), []).append(rank)
    groups = [tuple(ranks) for ranks in alike.values()]
    columns = [
        _Column(tensor, group, numbers)
        for group, ranks in enumerate(groups)
        for tensor, numbers in zip(
            told.ranks[ranks[0]].tensors, zip(*(told.ranks[rank].at for rank in ranks), strict=True), strict=True
        )
    ]
    return _Columns(groups, columns)


def _layout(told: Told, found: _Columns) -> Layout:
    """The whole state's layout. Raises BadState, naming a tensor and two ranks that disagree on it."""
    empty = {number for number, box in enumerate(told.boxes) if not box.num_lanes}
    first: dict[str, tuple[TensorSpec, int]] = {}
    owners: dict[str, set[str]] = {}
    for column in found.columns:
        tensor, rank = column.tensor, found.groups[column.group][0]
        spec, other = first.setdefault(tensor.name, (tensor, rank))
        if (spec.dtype, spec.shape) != (tensor.dtype, tensor.shape):
            here, there = (f"{each.dtype} {list(each.shape)}" for each in (tensor, spec))
            raise BadState(f"is {there} on rank {other}, and {here} on rank {rank}", tensor.name)
        if not empty.issuperset(column.numbers):
            owners.setdefault(tensor.name, set()).add(tensor.tie or tensor.name)
    if not first:
        raise BadState("there are no tensors in this state on any rank")
    # Tied is what every rank that holds some of it finds tied to the same tensor, and that one is tied to none.
    tied = {name: next(iter(found)) for name, found in owners.items() if len(found) == 1 and name not in found}
    return Layout.of(
        replace(spec, tie=tied[name] if name in tied and tied[name] not in tied and _equal(first, name, tied) else None)
        for name, (spec, _) in first.items()
    )


def _equal(first: Mapping[str, tuple[TensorSpec, int]], name: str, tied: Mapping[str, str]) -> bool:
    """Whether a tensor and the one it would be tied to are of one shape: boxes of different tensors may be equal."""
    return first[name][0].shape == first[tied[name]][0].shape


def _cuts(told: Told, found: _Columns, layout: Layout, rank: int) -> dict[str, _Cut]:
    """How each stored tensor is cut, by name."""
    keys: dict[str, list[tuple[int, tuple[int, ...]]]] = {layout.tensors[place].name: [] for place in layout.stored}
    for column in found.columns:
        if column.tensor.name in keys:
            keys[column.tensor.name].append((column.group, column.numbers))
    known: dict[tuple[tuple[int, tuple[int, ...]], ...], _Cut] = {}
    cuts = {}
    for name, parts in keys.items():
        key = tuple(parts)
        if key not in known:
            pieces = [
                (holder, told.boxes[number])
                for group, numbers in parts
                for holder, number in zip(found.groups[group], numbers, strict=True)
            ]
            pieces.sort(key=lambda piece: piece[0])
            known[key] = _Cut.of(pieces, len(told.ranks), rank)
        cuts[name] = known[key]
    return cuts


def _check_cover(layout: Layout, cuts: Mapping[str, _Cut]) -> None:
    """Raise BadState unless the boxes of every tensor make it up, each lane once."""
    for name, cut in cuts.items():
        if cut.met is not None:
            one, other = (f"{list(box.lengths)} at {list(box.offsets)} on rank {cut.held[box][0]}" for box in cut.met)
            raise BadState(f"is held in parts that overlap without being equal: {one}, {other}", name)
        tensor = layout.tensors[layout.place[name]]
        lacking = tensor.num_lanes - cut.num_lanes
        if lacking:
            ranks = ", ".join(map(str, sorted({rank for found in cut.held.values() for rank in found})))
            those = f"parts of it are on rank {ranks}" if ranks else "every rank's part is empty"
            raise BadState(f"has {lacking} of {tensor.num_lanes} lanes that no rank holds; {those}", name)


def _shared_out(
    layout: Layout, cuts: Mapping[str, _Cut], rank: int
) -> tuple[Mapping[str, Sequence[Box]], Sequence[Copied]]:
    """Give every box to one of the ranks that hold it, the largest first, each to the one that has least to write.

    Returns:
        This rank's, and those that several ranks hold.
    """
    owned: dict[str, list[Box]] = {}
    total: npt.NDArray[np.int64] | int = 0
    shared = []
    for name, cut in cuts.items():
        tensor = layout.tensors[layout.place[name]]
        total = total + cut.alone * tensor.lane_bytes
        if cut.mine:
            owned[name] = [*cut.mine]
        shared += [(part, tensor, among) for box, among in cut.shared for part in _parts(box, tensor)]
    load = [] if isinstance(total, int) else total.tolist()
    shared.sort(key=lambda each: (-each[0].num_lanes * each[1].lane_bytes, each[1].name, each[0].offsets))
    copied = []
    for box, tensor, among in shared:
        owner = min(among, key=lambda rank: (load[rank], rank))
        load[owner] += box.num_lanes * tensor.lane_bytes
        copied.append(Copied(tensor.name, box, among, owner))
        if owner == rank:
            owned.setdefault(tensor.name, []).append(box)
    return {name: tuple(boxes) for name, boxes in owned.items()}, copied


def _parts(box: Box, tensor: TensorSpec) -> Iterator[Box]:
    for part in frame_boxes(box.lengths, tensor.lane_bytes, FRAME_BYTES):
        yield part.lifted(box)
