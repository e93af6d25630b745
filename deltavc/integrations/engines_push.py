"""Pushing: a version into the live weights of one engine or several, all of them or none.

    stage on all ─> wait ─> pause all ─> swap on all ─> flush, stamp ─> resume all
     beside serving  │                    │ a worker failed
                     └── a worker failed: └── every engine that moved goes back ─> resume those that are whole

An engine is resumed only when all its workers say that their weights are one version. One that cannot say so is left
paused: it serves nothing rather than something wrong.
"""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from deltavc.errors import (
    DeltavcError,
    EngineError,
    EngineStopped,
    EngineVersionUnknown,
    NothingStaged,
    UnknownRef,
    WorkerFailed,
)
from deltavc.integrations.engines import Order, Report

if TYPE_CHECKING:
    from deltavc.repo import Repo

K = TypeVar("K")
T = TypeVar("T")
log = logging.getLogger(__name__)

Running = Literal["requeue", "abort", "keep"]
"""What becomes of requests that run during a push. requeue: their caches are dropped, and computed again with the new
weights. abort: they end. keep: they go on with caches that the old weights computed."""

_LOOKS = (0.05, 2.0)
"""Seconds from one look at staging to the next, at first and at most."""


class Engine(ABC):
    """An inference engine with workers that take orders.

    url: its address, which names it in errors.
    """

    url: str

    @abstractmethod
    def check(self) -> None:
        """Find out whether versions can be pushed to it. Raises EngineUnreachable, EngineUnfit, EngineRefused."""

    @abstractmethod
    def is_paused(self) -> bool:
        """Whether it serves nothing now, as after a push that was killed. Orders leave it so."""

    @abstractmethod
    def label(self) -> str:
        """What the engine calls its weights: what it was stamped with, or whatever it was started with."""

    @abstractmethod
    def order(self, order: Order) -> Report:
        """Have all workers carry out an order. Raises EngineUnreachable, EngineUnfit, EngineRefused."""

    @abstractmethod
    def pause(self, running: Running) -> None:
        """Have it serve nothing, until `resume`."""

    @abstractmethod
    def flush(self, running: Running) -> None:
        """Drop what was computed with the old weights, while it is paused."""

    @abstractmethod
    def stamp(self, version: str) -> None:
        """Have it call its weights this version."""

    @abstractmethod
    def resume(self) -> None:
        """Have it serve again."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A version that was pushed.

    pause_seconds: from when the first engine was paused until the last one was resumed, as seen from here. engines: by
    address, where its workers are.
    """

    version: str
    pause_seconds: float
    stage_seconds: float
    engines: Mapping[str, Report]

    def as_json(self) -> dict[str, Any]:
        told = {url: report.as_json()["workers"] for url, report in self.engines.items()}
        return {
            "version": self.version,
            "pause_seconds": self.pause_seconds,
            "stage_seconds": self.stage_seconds,
            "engines": told,
        }


def push(
    repo: Repo,
    ref: str,
    engines: Sequence[Engine],
    order: Order,
    *,
    at: str | None = None,
    running: Running = "requeue",
) -> Pushed:
    """Bring engines to a version: all workers of all of them, or none.

    An engine that is paused already is resumed when it has moved, or was put back, and not before.

    Args:
        order: what all orders have in common: the repository as workers open it, time-outs, memory.
            `long_pause`: write in the pause, and not stage before it, where staging says that it has to be.
        at: the version that engines were started with, if they have not been pushed to yet.

    Raises:
        UnknownRef, AmbiguousRef: of the refs.
        EngineUnreachable, EngineUnfit, EngineRefused, EngineVersionUnknown, WorkerFailed: nothing has moved.
        EngineStopped: an engine is left paused. The others are where they were.
    """
    version = repo.resolve(ref)
    given = None if at is None else repo.resolve(at)
    for engine in engines:
        engine.check()
    halted = {engine: engine.is_paused() for engine in engines}
    labels = {engine: engine.label() for engine in engines}
    orders = {
        engine: replace(order, action="stage", version=version, at=given or _known(repo, labels[engine]))
        for engine in engines
    }
    begin = time.monotonic()
    looks = _stage(engines, orders)
    staged = time.monotonic()
    held = [_Held(engine, orders[engine], looks[engine], labels[engine], halted[engine], running) for engine in engines]
    moved = _swap(held)
    return Pushed(version, time.monotonic() - staged, staged - begin, {each.engine.url: moved[each] for each in held})


def _known(repo: Repo, label: str) -> str | None:
    """The version that an engine's name for its weights stands for, if we gave it."""
    if re.fullmatch("[0-9a-f]{64}", label) is None:
        return None
    try:
        return repo.resolve(label)
    except UnknownRef:
        return None


# --- beside serving ---


def _stage(engines: Sequence[Engine], orders: Mapping[Engine, Order]) -> dict[Engine, Report]:
    """Have all workers of all engines stage, and tell where they are then."""
    try:
        found = _every(engines, lambda engine: engine.order(orders[engine]))
        pause = _LOOKS[0]
        while waiting := [engine for engine in engines if not _is_ready(engine, found[engine], orders[engine])]:
            time.sleep(pause)
            pause = min(pause * 1.5, _LOOKS[1])
            found |= _every(waiting, lambda engine: engine.order(replace(orders[engine], action="status")))
    except BaseException:
        for engine in engines:
            try:
                engine.order(replace(orders[engine], action="cancel"))
            except EngineError as error:
                log.warning("staging was not cancelled: %s", error)
        raise
    return found


def _is_ready(engine: Engine, report: Report, order: Order) -> bool:
    """Whether all workers have staged, or came to what a long pause mends. Raises what else they came to."""
    if report.failed is None:
        if lost := next((worker for worker in report.workers if worker.staged != order.version), None):
            reason = "it prepares this version no more: another push came in between, or the engine was started again"
            raise WorkerFailed(engine.url, lost.rank, NothingStaged.kind, reason)
        return report.are_all("staged")
    if order.long_pause and report.failed.failure in _LONG:
        return True
    raise _error_of(engine, report)


_LONG = ("staging_too_small", "replica_unusable", "wrong_weights", "copies_differ")


# --- in the pause ---


@dataclass(frozen=True, eq=False)
class _Held:
    """An engine that has staged, and how it can be moved and put back.

    order: the one that it has staged by. look: where its workers were before the pause. label: what it called its
    weights then. halted: whether it was paused then, by a push that may have been killed anywhere.
    """

    engine: Engine
    order: Order
    look: Report
    label: str
    halted: bool
    running: Running

    def pause(self) -> None:
        self.engine.pause(self.running)

    def move(self) -> Report:
        """Swap. Raises if it is not shown that all workers have."""
        long = self.look.failed is not None
        report = self.engine.order(replace(self.order, action="move" if long else "apply", long_pause=long))
        return self._at(self.order.version, report)

    def finish(self) -> None:
        """Make the engine the new version's in everything else."""
        self.engine.flush(self.running)
        self.engine.stamp(self.order.version)

    def put_back(self) -> None:
        """Bring all workers to the version that they were at. Raises if it is not shown that they are."""
        report = self.engine.order(replace(self.order, action="status"))
        before = self.look.version
        if before is None:  # its weights were no version, and there is nothing to go back to
            raise self._astray(report)
        moved = report.version != before
        if moved:
            self._at(before, self.engine.order(replace(self.order, action="move", version=before, long_pause=False)))
        if moved or self.halted:
            self.engine.flush(self.running)
        label = before if self.halted else self.label
        if self.engine.label() != label:
            self.engine.stamp(label)

    def resume(self) -> None:
        try:
            self.engine.resume()
        except EngineError as error:
            raise EngineStopped(self.engine.url, f"all its workers are at one version, but {error}") from error

    def _at(self, version: str, report: Report) -> Report:
        if report.failed is not None:
            raise _error_of(self.engine, report)
        if report.version != version:
            raise self._astray(report)
        return report

    def _astray(self, report: Report) -> WorkerFailed:
        where = ", ".join(f"{each.rank} is {each.state} at {(each.version or '-')[:12]}" for each in report.workers)
        return WorkerFailed(self.engine.url, report.workers[0].rank, "astray", f"of the workers, {where}")


def _swap(held: Sequence[_Held]) -> dict[_Held, Report]:
    """Pause all engines, move all, and resume them; or put all back, and resume those that are whole."""
    try:
        _every(held, _Held.pause)
        moved = _every(held, _Held.move)
        _every(held, _Held.finish)
    except BaseException as error:
        _put_back(held, error)
        raise
    failures: list[BaseException] = []
    for each in held:
        try:
            each.resume()
        except BaseException as error:  # an interrupt, too: the others are whole, and have to serve
            failures.append(error)
    if failures:
        raise failures[0]
    return moved


def _put_back(held: Sequence[_Held], error: BaseException) -> None:
    stopped: list[tuple[Engine, Exception]] = []
    for each in held:
        try:
            each.put_back()
            each.resume()
        except Exception as other:
            log.warning("%s could not be put back: %s", each.engine.url, other)
            stopped.append((each.engine, other))
    for engine, why in stopped:
        raise EngineStopped(engine.url, f"{why} (after: {error})") from error


def _error_of(engine: Engine, report: Report) -> DeltavcError:
    failed = report.failed
    assert failed is not None
    if failed.failure == EngineVersionUnknown.kind:
        return EngineVersionUnknown(engine.label())
    return WorkerFailed(engine.url, failed.rank, failed.failure, failed.reason)


def _every(those: Sequence[K], do: Callable[[K], T]) -> dict[K, T]:
    """Do something with all at once, and wait for all. Raises what the first of them that failed raised."""
    with ThreadPoolExecutor(max(1, len(those))) as pool:
        futures = {each: pool.submit(do, each) for each in those}
    return {each: future.result() for each, future in futures.items()}
