"""Arrangements: who of many ranks holds what of a state, and who writes it.

    rank 0   embed, rows 0-3    norm (all of it)        embed is whole: nothing is missing, nothing twice
    rank 1   embed, rows 4-7    norm                    norm has two copies: one of them is written, both are compared

All ranks work it out from the same descriptions, and so to the same end; what they found is exchanged again only when
some rank holds something else. Boxes that several ranks hold are cut into frames, so that large ones are shared out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from deltavc.change import Box, overlapping
from deltavc.delta.frames import frame_boxes
from deltavc.errors import BadState
from deltavc.layout import Layout, TensorSpec
from deltavc.packing import FRAME_BYTES
from deltavc.sharded.pieces import Description

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
    """What the ranks of a group hold together.

    layout: of the whole state. owned: for each rank, the boxes that it writes of each stored tensor. copied: the boxes
    that more than one rank holds. files: the rank that keeps each of the files that came with the state.
    """

    layout: Layout
    owned: Sequence[Mapping[str, Sequence[Box]]]
    copied: Sequence[Copied]
    files: Mapping[str, int]

    @classmethod
    def of(cls, told: Sequence[Description]) -> Arrangement:
        """Arrange what each rank says it holds, by rank.

        Raises:
            BadState: no rank holds anything; ranks disagree on a tensor's dtype or shape; boxes overlap without being
                equal; some lanes are held by none. Names the tensor and the ranks.
        """
        layout = _layout(told)
        held: dict[str, dict[Box, list[int]]] = {layout.tensors[place].name: {} for place in layout.stored}
        for rank, description in enumerate(told):
            for name, piece in description.pieces.items():
                if name in held and piece.box.num_lanes:
                    held[name].setdefault(piece.box, []).append(rank)
        _check_cover(layout, held)
        owned, copied = _shared_out(layout, held, len(told))
        files: dict[str, int] = {}
        for rank, description in enumerate(told):
            for name in description.files:
                files.setdefault(name, rank)
        return cls(layout, owned, copied, files)


def _layout(told: Sequence[Description]) -> Layout:
    """The whole state's layout. Raises BadState, naming a tensor and two ranks that disagree on it."""
    first: dict[str, tuple[TensorSpec, int]] = {}
    owners: dict[str, set[str]] = {}
    for rank, description in enumerate(told):
        for name, piece in description.pieces.items():
            spec, other = first.setdefault(name, (piece.tensor, rank))
            if (spec.dtype, spec.shape) != (piece.tensor.dtype, piece.tensor.shape):
                here, there = (f"{each.dtype} {list(each.shape)}" for each in (piece.tensor, spec))
                raise BadState(f"is {there} on rank {other}, and {here} on rank {rank}", name)
            if piece.box.num_lanes:
                owners.setdefault(name, set()).add(piece.tensor.tie or name)
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


def _check_cover(layout: Layout, held: Mapping[str, Mapping[Box, Sequence[int]]]) -> None:
    """Raise BadState unless the boxes of every tensor make it up, each lane once."""
    for name, boxes in held.items():
        if len(boxes) > 1 and (met := overlapping([*boxes])) is not None:
            one, other = (f"{list(box.lengths)} at {list(box.offsets)} on rank {boxes[box][0]}" for box in met)
            raise BadState(f"is held in parts that overlap without being equal: {one}, {other}", name)
        tensor = layout.tensors[layout.place[name]]
        lacking = tensor.num_lanes - sum(box.num_lanes for box in boxes)
        if lacking:
            ranks = ", ".join(map(str, sorted({rank for found in boxes.values() for rank in found})))
            those = f"parts of it are on rank {ranks}" if ranks else "every rank's part is empty"
            raise BadState(f"has {lacking} of {tensor.num_lanes} lanes that no rank holds; {those}", name)


def _shared_out(
    layout: Layout, held: Mapping[str, Mapping[Box, Sequence[int]]], size: int
) -> tuple[list[Mapping[str, Sequence[Box]]], list[Copied]]:
    """Give every box to one of the ranks that hold it, the largest first, each to the one that has least to write."""
    owned: list[dict[str, list[Box]]] = [{} for _ in range(size)]
    load: Counter[int] = Counter()
    shared = []
    for name, boxes in held.items():
        tensor = layout.tensors[layout.place[name]]
        for box, ranks in boxes.items():
            if len(ranks) == 1:
                owned[ranks[0]].setdefault(name, []).append(box)
                load[ranks[0]] += box.num_lanes * tensor.lane_bytes
            else:
                shared += [(part, tensor, tuple(ranks)) for part in _parts(box, tensor)]
    shared.sort(key=lambda each: (-each[0].num_lanes * each[1].lane_bytes, each[1].name, each[0].offsets))
    copied = []
    for box, tensor, among in shared:
        owner = min(among, key=lambda rank: (load[rank], rank))
        load[owner] += box.num_lanes * tensor.lane_bytes
        owned[owner].setdefault(tensor.name, []).append(box)
        copied.append(Copied(tensor.name, box, among, owner))
    return [{name: tuple(boxes) for name, boxes in each.items()} for each in owned], copied


def _parts(box: Box, tensor: TensorSpec) -> Iterator[Box]:
    for part in frame_boxes(box.lengths, tensor.lane_bytes, FRAME_BYTES):
        yield part.lifted(box)
