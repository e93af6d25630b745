"""Engines: what is said between a client that pushes a version and the workers of an inference engine.

    client ── Order (JSON) ──> engine ──> every worker        stage, status, apply, move, cancel
    client <── Report (JSON) ── engine <── every worker       where each is, and what it met

All workers get the same orders one after another. This module imports neither torch nor an engine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

Action = Literal["stage", "status", "apply", "move", "cancel"]
"""stage: begin to prepare a version, beside serving. status: tell how far that is. apply: swap to the version that is
staged; the engine is paused. move: stage and apply at once, in a pause. cancel: end staging that version."""

WorkerState = Literal["new", "staging", "staged", "serving", "unusable", "silent"]
"""new: it has not taken its weights in yet. unusable: its weights may be no version. silent: it did not answer."""

SPEECH = 1
"""Which orders and reports these are. Those of other releases of deltavc may have another number."""


@dataclass(frozen=True, slots=True)
class Order:
    """What every worker of an engine is to do.

    repository, db, storage_options: as `deltavc.open` takes them, on the machines of the workers. version: the id of
    the version to stage, apply or move to. at: the id of the one that the engine was started with, which is asked for
    once. timeout: seconds that a worker waits for the others at each step. staging_bytes: memory for staged changes in
    each worker; None for what it has, an eighth of its weights at first. long_pause: whether to write what does not
    fit, or a worker whose weights are no version, edge by edge while the engine is paused; for `move` alone.
    """

    action: Action
    repository: str
    version: str = ""
    at: str | None = None
    db: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    staging_bytes: int | None = None
    long_pause: bool = False

    def to_json(self) -> str:
        return json.dumps({"deltavc": SPEECH} | dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read an order.

        Raises:
            ValueError: it is none, or one of another release.
        """
        try:
            told = dict(json.loads(text))
            if (speech := told.pop("deltavc", None)) != SPEECH:
                raise ValueError(f"it is in speech {speech}, and this release of deltavc has speech {SPEECH}")
            order = cls(**told)
            if order.action not in get_args(Action):
                raise ValueError(f"there is no action {order.action!r}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"it is no order to a worker: {error}") from error
        return order


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Where a worker is after an order.

    version: the id of the one that its weights are; None while it is new. staged: of the one that is staged or being
    staged. failure, reason: the kind of what the order failed with, and its words; "" if it did not. pause_seconds,
    changed_lanes, nbytes: of what it applied, as `deltavc.replica.Applied` has them.
    """

    rank: int
    state: WorkerState
    version: str | None = None
    staged: str | None = None
    failure: str = ""
    reason: str = ""
    pause_seconds: float = 0.0
    changed_lanes: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Where all workers of an engine are after an order, by rank."""

    workers: tuple[WorkerReport, ...]

    @property
    def failed(self) -> WorkerReport | None:
        """The worker that the order failed on: one whose weights are wrong, or else one that met something itself,
        rather than hearing of it."""
        failed = [worker for worker in self.workers if worker.failure]
        return min(failed, key=lambda worker: (worker.state != "unusable", worker.failure in _HEARD), default=None)

    @property
    def version(self) -> str | None:
        """The one version that the weights of all workers are; None if it is not the same, or not known of one."""
        doubtful = ("new", "unusable", "silent")
        versions = {None if worker.state in doubtful else worker.version for worker in self.workers}
        return versions.pop() if len(versions) == 1 else None

    def are_all(self, state: WorkerState) -> bool:
        return all(worker.state == state for worker in self.workers)

    def as_json(self) -> dict[str, Any]:
        return {"deltavc": SPEECH, "workers": [dataclasses.asdict(worker) for worker in self.workers]}

    @classmethod
    def from_json(cls, told: Any) -> Self:
        """Read what `as_json` gave.

        Raises:
            ValueError: it is no report, or one of another release.
        """
        try:
            if told["deltavc"] != SPEECH:
                raise ValueError(f"it is in speech {told['deltavc']}, and this release of deltavc has speech {SPEECH}")
            workers = tuple(WorkerReport(**worker) for worker in told["workers"])
            if not workers:
                raise ValueError("no worker says anything")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"it is no report of workers: {error}") from error
        return cls(workers)


_HEARD = {"peer_failed", "group_broken"}
