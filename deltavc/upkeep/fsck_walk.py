"""The full check: every edge walked once, and its target proven, by lanes that are held once.

    held lanes ── frames of an edge: checksum, decode, apply ── the sum by which each tensor's fingerprint moved
                                                                 has to make what the edge tells of its target

Applying a change gives that sum beside the lanes, so proving a version costs what its edge is long, not what the model
is large. An edge beside the way is applied and taken back, frame by frame. Where all lanes do not fit, tensors are
walked in groups, which are independent of each other: every frame is still read once.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deltavc import held, kernels, walk
from deltavc.change import Box
from deltavc.delta.frames import Frame
from deltavc.errors import CorruptObject, WrongWeights
from deltavc.fingerprints import MODULUS
from deltavc.held import HeldLanes
from deltavc.kernels import pool
from deltavc.lanes import LANE_DTYPES
from deltavc.layout import Layout
from deltavc.lineage.plan import Plan, Step
from deltavc.lineage.records import EdgeRecord
from deltavc.timings import Timings
from deltavc.upkeep.fsck_graph import Graph, Outline, Way
from deltavc.upkeep.fsck_told import told
from deltavc.walk import Job, Leg, Objects

MANY = 128
"""Edges whose packs are fetched ahead of each other; their records are in memory at once."""

Group = frozenset[str]
"""Names of tensors that are walked together."""


@dataclass(frozen=True, slots=True)
class Walked:
    """One edge after its walk.

    fault: what was wrong; None if it leads where it says.
    values: where it was walked back, the fingerprints at its base, which it does not tell: they have to be compared
    with the version's root.
    """

    edge: Outline
    fault: CorruptObject | WrongWeights | None = None
    values: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class _Move:
    """A leg of the tour. anew: start from nothing before it. proves: it is here to check its edge."""

    way: Way
    leg: Leg
    anew: bool
    proves: bool


class Walker:
    """Walks a graph's edges with one group of tensors."""

    def __init__(self, graph: Graph, record: Callable[[Outline], EdgeRecord], objects: Objects, group: Group) -> None:
        self._graph = graph
        self._record = record
        self._objects = objects
        self._group = group
        self._names: dict[str, frozenset[str]] = {}
        self._lanes = HeldLanes(held.fresh("cpu"))
        self._values: dict[str, int] = {}
        self._at: str | None = None

    def check(self, tour: Iterable[Way]) -> Iterator[Walked]:
        """Walk these ways (`Graph.tour`), and say of each edge what came of it.

        After a fault, ways that start where it should have led are passed over: another tour, over a graph without
        that edge, may find them.

        Raises:
            StoreError; UnknownCodec: a frame was written by a newer release.
        """
        out_of_reach: set[str | None] = set()
        waiting = list(reversed(list(tour)))
        while waiting:
            ways = [waiting.pop() for _ in range(min(MANY, len(waiting)))]
            moves = list(self._moves(ways, out_of_reach))
            done = 0
            try:
                for move in self._run(moves):
                    done += 1
                    if move.proves:
                        yield Walked(move.way.edge, values=None if move.way.forward else dict(self._values))
            except (CorruptObject, WrongWeights) as error:
                broken = _blamed(error, moves[done:])
                self._leave()
                yield Walked(broken.way.edge, error)
                if not broken.proves:
                    return  # what was whole before is not any more: the graph has to be drawn anew
                if broken.way.stays:
                    out_of_reach.add(broken.way.to)
                rest = [move.way for move in moves[done:] if move.proves and move is not broken]
                waiting += reversed(rest)

    def _moves(self, ways: Iterable[Way], out_of_reach: set[str | None]) -> Iterator[_Move]:
        """The ways, and before each what leads to where it starts."""
        at = self._at
        for way in ways:
            if way.source in out_of_reach:
                if way.stays:
                    out_of_reach.add(way.to)
                continue
            if way.source is not None:
                for between in self._graph.between(at, way.source):
                    yield _Move(between, self._leg(between), anew=between.source is None, proves=False)
                at = way.source
            yield _Move(way, self._leg(way), anew=way.source is None and way.stays, proves=True)
            at = way.to if way.stays else at

    def _leg(self, way: Way) -> Leg:
        step = Step(self._record(way.edge), way.forward)
        layout_id = step.edge.layout if way.forward else step.edge.base_layout
        assert layout_id is not None  # snapshots are never walked back
        if layout_id not in self._names:
            self._names[layout_id] = self._objects.layout(layout_id).stored_names & self._group
        plan = Plan(step.to, None, (step,), 0, 0)
        return walk.legs(plan, self._objects, self._names[layout_id])[0]

    def _run(self, moves: list[_Move]) -> Iterator[_Move]:
        """Make the moves one after another, their frames fetched ahead; each is yielded when it is made."""
        fetched = walk.fetched([move.leg for move in moves], self._objects, Timings())
        made = 0
        for number, jobs in itertools.groupby(fetched, lambda item: item[0].leg):
            for move in moves[made:number]:  # without frames of this group
                self._make(move, ())
                yield move
            self._make(moves[number], jobs)
            yield moves[number]
            made = number + 1
        for move in moves[made:]:
            self._make(move, ())
            yield move

    def _make(self, move: _Move, jobs: Iterable[tuple[Job, bytes]]) -> None:
        """Walk one leg, or try it, and compare.

        Raises:
            CorruptObject, MissingObject: something is damaged or gone.
            WrongWeights: it leads elsewhere.
        """
        leg, stays = move.leg, move.way.stays
        if move.anew:
            self._leave()
        if stays:
            self._enter(leg)
        moved: dict[str, int] = defaultdict(int)
        for name, sum_ in pool.in_order(self._tasks(leg, jobs, stays), self._objects.memory // 2):
            moved[name] += sum_
        values = {name: _zero(leg.layout, name) for name in leg.fresh}
        for name, sum_ in moved.items():
            values[name] = (values.get(name, self._values.get(name, 0)) + sum_) % MODULUS
        if move.way.forward:
            self._compare(leg, values)
        if stays:
            self._values.update(values)
            self._at = move.way.to

    def _compare(self, leg: Leg, values: Mapping[str, int]) -> None:
        edge, before = leg.step.edge, self._values
        expected = {name: value for name, value in told(edge, leg.layout).items() if name in leg.wanted}
        names = expected.keys() | values.keys()
        wrong = [name for name in names if expected.get(name, before.get(name)) != values.get(name, before.get(name))]
        if wrong:
            raise WrongWeights(edge.target, tuple(sorted(wrong)))

    def _enter(self, leg: Leg) -> None:
        if len(leg.kept) != len(self._values):
            self._lanes.keep(leg.kept)
            self._values = {name: self._values[name] for name in leg.kept}
        for name in leg.fresh:
            self._lanes.start(name, leg.layout)

    def _leave(self) -> None:
        self._lanes.keep(frozenset())
        self._values = {}
        self._at = None

    def _tasks(
        self, leg: Leg, jobs: Iterable[tuple[Job, bytes]], stays: bool
    ) -> Iterator[tuple[int, Callable[[], tuple[str, int]]]]:
        for job, body in jobs:
            for frame in job.frames:
                yield walk.decode_cost(leg, frame), functools.partial(self._frame, leg, job, frame, body, stays)

    def _frame(self, leg: Leg, job: Job, frame: Frame, body: bytes, stays: bool) -> tuple[str, int]:
        """Apply one frame, and take it back unless the walk stays: its tensor, and by how much that moves."""
        change = walk.decode(leg, job, frame, body, self._objects)
        tensor = leg.frames_layout.tensors[frame.place]
        box = frame.box or Box.whole(tensor.lane_shape)
        if stays or tensor.name in leg.kept:
            whole = self._lanes[tensor.name]
            part = whole[box.index] if box.lengths else whole
        else:
            part = _zeros(box, tensor.lane_bytes)
        moved = kernels.apply(part, change, box, tensor.lane_shape, sign=1 if leg.step.forward else -1)
        if not stays and tensor.name in leg.kept:
            kernels.apply(part, change, box, tensor.lane_shape, sign=-1)  # only forward ways do not stay
        return tensor.name, moved


def groups_of(layouts: Iterable[Layout], nbytes: int) -> list[Group]:
    """Split the names of all tensors so that the lanes of each group take at most `nbytes`, or are one tensor's."""
    sizes: dict[str, int] = {}
    for layout in layouts:
        for place in layout.stored:
            tensor = layout.tensors[place]
            sizes[tensor.name] = max(sizes.get(tensor.name, 0), tensor.nbytes)
    groups: list[set[str]] = [set()]
    room = nbytes
    for name in sorted(sizes):
        if groups[-1] and sizes[name] > room:
            groups.append(set())
            room = nbytes
        groups[-1].add(name)
        room -= sizes[name]
    return [frozenset(group) for group in groups]


def _blamed(error: CorruptObject | WrongWeights, moves: list[_Move]) -> _Move:
    """The move that an error is about: packs are fetched ahead, so it need not be the one that was being made."""
    if isinstance(error, CorruptObject):
        for move in moves:
            edge = move.leg.step.edge
            if edge.target == error.version and any(use.key == error.key for use in edge.packs):
                return move
    return moves[0]


def _zero(layout: Layout, name: str) -> int:
    """The fingerprint of a tensor whose lanes are all zero."""
    shape = layout.tensors[layout.place[name]].lane_shape
    return kernels.zero_fingerprint(Box.whole(shape), shape)


def _zeros(box: Box, lane_bytes: int) -> Tensor:
    return torch.zeros(box.lengths, dtype=LANE_DTYPES[lane_bytes])
