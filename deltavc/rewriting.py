"""Rewriting: a path walked on the live tensors themselves, while nobody may read.

Slower than a swap and without a way back, but it needs no staging memory, and from nothing it writes every lane anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from deltavc import kernels, walk
from deltavc.bound import Bound
from deltavc.kernels import pool
from deltavc.routing import Changes, Router
from deltavc.timings import Timings
from deltavc.walk import Leg, Objects


def rewrite(bound: Bound, router: Router, legs: list[Leg], objects: Objects, timings: Timings) -> None:
    """Walk the legs on the live lanes, in place. What is left after an exception is no version.

    Raises:
        CorruptObject, MissingObject, UnknownCodec, StoreError
    """
    at = 0
    fetched = walk.fetched(legs, objects, timings, router.boxes)
    for number, jobs in itertools.groupby(fetched, lambda item: item[0].leg):
        _enter(bound, router, legs[at : number + 1])
        at = number + 1
        # The frames of one edge touch different lanes.
        tasks = _applied(bound, router.tasks(legs[number], jobs, objects, timings), timings)
        for _ in pool.in_order(tasks, objects.memory // 2):
            pass
    _enter(bound, router, legs[at:])


def _enter(bound: Bound, router: Router, legs: Iterable[Leg]) -> None:
    for leg in legs:
        for number in router.numbers(leg.fresh):
            lanes = bound.cells[number].lanes
            pool.apart(lanes.device, lanes.zero_)


def _applied(
    bound: Bound, tasks: Iterable[tuple[int, Callable[[], tuple[int, Changes]]]], timings: Timings
) -> Iterator[tuple[int, Callable[[], None]]]:
    for cost, task in tasks:

        def write(task: Callable[[], tuple[int, Changes]] = task) -> None:
            for number, change in task()[1]:
                cell = bound.cells[number]
                with timings.stage("apply"):
                    kernels.apply(cell.lanes, walk.on_device(change, cell.device), cell.box, cell.shape)

        yield cost, write
