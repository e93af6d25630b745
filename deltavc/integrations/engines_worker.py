"""Served models: the part of a model that one worker of an engine holds, kept at a version of a repository.

    engine's thread   order ─> carry out ─> tell each other ─> report        the same orders on every worker
                                  │  ▲
    own thread                    └──┴── take in, stage (beside serving)
                                             │
    replica group            stage ─> all have ─> apply: all of them or none

The first order that needs weights takes them in: finds where they lie, reads them, and proves that all workers together
hold the version that they are said to be. From then on they are a replica group. Nothing here raises into the engine:
an exception in one worker ends SGLang, and puts vLLM's answers out of step.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

import deltavc
from deltavc.errors import DeltavcError, EngineVersionUnknown, NothingStaged
from deltavc.integrations.engines import Order, Report, WorkerReport
from deltavc.integrations.engines_bindings import held_by
from deltavc.ranks.council import Council
from deltavc.ranks.exchange import Exchange
from deltavc.ranks.meeting import council_of
from deltavc.ranks.worker import Worker

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroup

    from deltavc.outcome import Outcome
    from deltavc.replica.applied import Applied, Staged
    from deltavc.replica.group import ReplicaGroup
    from deltavc.repo import Repo

log = logging.getLogger(__name__)


def carry_out(model: torch.nn.Module, group: ProcessGroup | None, text: str | bytes) -> Report:
    """Do what an order says. Every worker of an engine calls it, with the same orders. Never raises an Exception.

    Args:
        model: this worker's own.
        group: all workers that hold a part of it; None for the default group.
        text: the order, as JSON.

    Returns:
        Where all workers are now.
    """
    try:
        order = Order.from_json(text)
        served = _served.get(model)
        if served is None:
            served = _served[model] = ServedModel(model, group, order.timeout)
    except Exception as error:
        log.exception("an order was not carried out")
        return Report((failed(WorkerReport(0, "new"), error),))
    return served.carry_out(order)


def let_go(model: torch.nn.Module) -> None:
    """Let go of a model's weights and of the repository. The next order takes them in anew."""
    served = _served.pop(model, None)
    if served is not None:
        served.close()


_served: dict[torch.nn.Module, ServedModel] = {}


class ServedModel:
    """What one worker holds of a model. For the thread on which the engine gives its orders."""

    def __init__(self, model: torch.nn.Module, group: ProcessGroup | None, timeout: float) -> None:
        """
        Raises:
            BadState, GroupBroken: there is no process group, or the others do not come.
        """
        self._model = model
        self._members = group
        self._council: Council = council_of(group, None, timeout)
        self._exchange = Exchange(self._council)
        self._worker = Worker("deltavc-engine")
        self._repository = ""
        self._staging_bytes: int | None = None
        self._repo: Repo | None = None
        self._group: ReplicaGroup | None = None
        self._wanted: str | None = None
        self._staging: Outcome[None] | None = None
        self._staged: Staged | None = None
        self._cancelled = threading.Event()

    def carry_out(self, order: Order) -> Report:
        """Do what an order says, and tell where all workers are then. Never raises an Exception."""
        self._council.timeout = order.timeout
        if self._group is not None:
            self._group.timeout = order.timeout
        applied: Applied | None = None
        failure: Exception | None = None
        try:
            applied = self._do(order)
        except Exception as error:
            log.warning("%s failed: %s", order.action, error, exc_info=not isinstance(error, DeltavcError))
            failure = error
        own = self._report()
        if applied is not None:
            own = replace(
                own,
                pause_seconds=applied.pause_seconds,
                changed_lanes=applied.changed_lanes,
                nbytes=applied.nbytes,
            )
        if failure is not None:
            own = failed(own, failure)
        return self._told(own, order)

    def close(self) -> None:
        """Let go of the weights."""
        self._cancel()
        with suppress(DeltavcError):
            self._worker.run(self._let_go)
        self._worker.close()
        self._exchange.drop()

    # --- on the engine's thread ---

    def _do(self, order: Order) -> Applied | None:
        match order.action:
            case "stage":
                self._cancelled.clear()
                self._wanted, self._staged = order.version, None
                self._staging = self._worker.submit(partial(self._stage, order))
            case "status":
                if self._staging is not None and self._staging.done():
                    self._staging.result()
            case "cancel":
                if self._wanted == order.version:  # and not what another push has staged since
                    self._cancel()
            case "apply":
                return self._apply(order)
            case "move":
                self._cancel()
                return self._worker.run(partial(self._move, order))
        return None

    def _apply(self, order: Order) -> Applied:
        if self._staging is None or self._wanted != order.version:
            raise NothingStaged(self._version or "none yet")
        self._staging.result(order.timeout)
        assert self._group is not None
        self._wanted = self._staging = None
        return self._group.apply()

    def _cancel(self) -> None:
        self._cancelled.set()
        if self._staged is not None:
            self._staged.cancel()
        self._wanted = self._staging = None

    @property
    def _version(self) -> str | None:
        return None if self._group is None else self._group.version

    def _report(self) -> WorkerReport:
        group, staging = self._group, self._staging
        own = WorkerReport(self._council.rank, "new", self._version, self._wanted)
        if group is not None and group.state == "unusable":
            return replace(own, state="unusable")
        if staging is not None and not (staging.done() and _error_of(staging)):
            return replace(own, state="staged" if staging.done() else "staging")
        return replace(own, state="new" if group is None else "serving", staged=None)

    def _told(self, own: WorkerReport, order: Order) -> Report:
        """Hear where the others are."""
        try:
            with self._council.call(order.action) as call:
                told = self._exchange.gather(json.dumps(asdict(own)).encode(), call)
                call.agree()
        except Exception as error:
            self._exchange.drop()
            own = own if own.failure else failed(own, error)
            silent = (WorkerReport(rank, "silent") for rank in range(self._council.size) if rank != own.rank)
            return Report(tuple(sorted((own, *silent), key=lambda worker: worker.rank)))
        return Report(tuple(WorkerReport(**json.loads(body)) for body in told))

    # --- on the worker's thread ---

    def _stage(self, order: Order) -> None:
        group = self._taken_in(order)
        staged = self._staged = group.stage(order.version)
        if self._cancelled.is_set():
            staged.cancel()
        staged.wait()

    def _move(self, order: Order) -> Applied:
        return self._taken_in(order).move(order.version, allow_long_pause=order.long_pause)

    def _taken_in(self, order: Order) -> ReplicaGroup:
        """The weights as a replica group, of which all workers are a part, or none is."""
        at = order.at
        if self._group is not None and self._repository == order.repository:
            if order.staging_bytes in (None, self._staging_bytes):
                return self._group
            at = self._group.version
        if at is None:
            raise EngineVersionUnknown("unknown")
        self._let_go()
        with council_of(self._members, None, order.timeout).call("take in") as call:
            repo = deltavc.open(order.repository, db=order.db, storage_options=dict(order.storage_options) or None)
            self._repo, self._repository, self._staging_bytes = repo, order.repository, order.staging_bytes
            held = held_by(self._model, repo.tensors(at))
            call.agree()  # so that nobody waits below for a worker that came to an error above
            group = self._group = repo.replica_group(
                held.live,
                at,
                group=self._members,
                timeout=order.timeout,
                bindings=held.bindings,
                ignore=held.ignore,
                staging_bytes=order.staging_bytes,
            )
        return group

    def _let_go(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._repo is not None:
            self._repo.close()
        self._group = self._repo = None


def _error_of(outcome: Outcome[None]) -> BaseException | None:
    """What some work that is done ended with."""
    try:
        outcome.result()
    except BaseException as error:
        return error
    return None


def failed(own: WorkerReport, error: Exception) -> WorkerReport:
    """A report that says what an order failed with, and how it can be mended."""
    kind = error.kind if isinstance(error, DeltavcError) else type(error).__name__
    return replace(own, failure=kind, reason=str(error))
