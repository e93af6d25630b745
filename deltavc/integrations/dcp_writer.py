"""The writer of distributed checkpoints: what dcp plans to write, committed by all ranks as one version.

    plan (dcp) ──> write_data, on every rank: what is in the plan ──> one commit of all ranks ──> finish (dcp)

dcp has chosen by then who writes what several ranks hold, so each rank commits just that. Everything that goes between
ranks in the commit goes over connections of its own, and not over dcp's process group, so `async_save` may run it
beside the collectives of a training step.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from deltavc.base import Keep
from deltavc.committing import PATIENCE
from deltavc.errors import BadMetadata, BadState
from deltavc.files import FileInput
from deltavc.integrations import dcp_values
from deltavc.integrations.dcp_ids import step_of, text_of
from deltavc.integrations.dcp_plan import nesting, resolved, whole
from deltavc.repo import Repo
from deltavc.shard import Shard
from deltavc.sharded.writer import GroupWriter
from deltavc.snapshots import DEFAULT_POLICY, SnapshotPolicy
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.version import Version
from deltavc.writer import Told, Writer

_GROUP = "give the writer as group= what dcp is given as process_group="


class DeltaWriter(StorageWriter):
    """A storage writer for `dcp.save` and `dcp.async_save` that commits to a branch.

    Keep one over the steps of a run, made on all ranks: it keeps the last version, to take changes from. A new one
    reads it from the repository first, each rank the part that it writes. After a failed save the next one goes on as
    if nothing had happened.
    """

    def __init__(
        self,
        repo: Repo,
        branch: str = "main",
        *,
        group: ProcessGroup | None = None,
        timeout: float = PATIENCE,
        keep: Keep = "host",
        memory: int = DEFAULT_MEMORY,
        codec: str | None = None,
        snapshots: SnapshotPolicy = DEFAULT_POLICY,
    ) -> None:
        """
        Args:
            branch: it moves with every save. As for `repo.writer`, it has to exist unless the repository is empty.
            group: the process group that dcp is given as `process_group`; None for the default one. What is saved
                with no_dist=True, or by a single process, needs none.
            timeout: seconds that a rank waits for the others at each step of a commit.
            keep: where the last version is kept: "host", in main memory; "device", beside the tensors; or "disk". It
                is as large as all that is saved.
            memory, codec, snapshots: as for `repo.writer`.
        """
        options = {"keep": keep, "memory": memory, "codec": codec, "snapshots": snapshots}
        self._session = _Session(repo, branch, group, timeout, options)
        self._told = Told()
        self._message = ""
        self._next_id: str | None = None
        self._checkpoint_id: str | None = None
        self._rank = 0
        self._alone = False
        self._coordinates = False

    @property
    def saved(self) -> Version | None:
        """The version that the last save committed, on every rank; None before the first."""
        return self._session.saved

    def telling(
        self,
        *,
        step: int | None = None,
        message: str = "",
        metrics: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        files: Mapping[str, FileInput] | None = None,
        snapshot: bool | None = None,
    ) -> DeltaWriter:
        """The same writer, whose next saves tell this of themselves: `storage_writer=writer.telling(step=7)`.

        Args:
            step, message, metrics, meta, snapshot: as for a commit. A step has to be the same on all ranks; of the
                others rank 0's count. Without them a `checkpoint_id` that names a step gives the step, and any
                `checkpoint_id` the message.
            files: kept with the version, of all ranks. Names that begin with "dcp/" are taken.
        """
        if reserved := next((name for name in files or () if str(name).startswith(dcp_values.FOLDER)), None):
            raise BadMetadata(f"files[{reserved!r}]", "names that begin with 'dcp/' are taken by the checkpoint")
        other = copy.copy(self)
        other._message = message
        other._told = Told(step=step, metrics=metrics, meta=meta, files=files, snapshot=snapshot)
        return other

    def close(self) -> None:
        """Let go of the last version. May be called twice, and on all ranks or none.

        The next save opens anew, from where the branch is by then: also the way on after BranchMoved.
        """
        self._session.close()

    def __enter__(self) -> DeltaWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what dcp calls, in this order ---

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._next_id = None if checkpoint_id is None else text_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._checkpoint_id, self._next_id = self._next_id, None  # dcp says nothing where a save has none
        if not kwargs.get("use_collectives", True):
            raise BadState("use_collectives=False makes checkpoints of single ranks: a version is of all ranks or none")
        self._coordinates, self._alone = is_coordinator, False
        here = 0 if is_coordinator else dist.get_rank(self._session.group)
        self._rank = kwargs.get("rank", here)  # older releases of torch do not say
        if self._rank != here:
            raise BadState(f"this is rank {self._rank} of the save, and rank {here} of the writer's group: {_GROUP}")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._alone = len(plans) == 1
        group = self._session.group
        if not self._alone and (dist.get_world_size(group), dist.get_rank(group)) != (len(plans), self._rank):
            size = dist.get_world_size(group)
            raise BadState(
                f"the save is of {len(plans)} ranks, and the writer's group of {size}, or of others: {_GROUP}"
            )
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        told = self._told.copy()
        message = self._message or self._checkpoint_id or ""
        if told.get("step") is None and self._checkpoint_id is not None:
            told["step"] = step_of(self._checkpoint_id)

        def found() -> tuple[dict[str, Shard], dict[str, FileInput]]:
            shards, values = resolved(plan, planner)
            files = dict(told.get("files") or {})
            if values:
                files[dcp_values.values_file(self._rank)] = dcp_values.body_of(values).getvalue()
            if self._coordinates and (paths := dcp_values.paths_body(nesting(planner))) is not None:
                files[dcp_values.PATHS] = paths
            return shards, files

        version = self._session.commit(self._alone, found, message, told)
        future: Future[list[WriteResult]] = Future()
        future.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, version.id) for item in plan.items])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing is left to be written: the version is committed."""
        assert self.saved is not None  # `write_data` has returned
        metadata.storage_meta = StorageMeta(checkpoint_id=self.saved.id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # a repository is opened, and not guessed from an id


@dataclass
class _Session:
    """The writer that saves share; opened by the first of them, on all ranks."""

    repo: Repo
    branch: str
    group: ProcessGroup | None
    timeout: float
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.saved: Version | None = None
        self._writer: Writer | GroupWriter | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeltaWriter stays in its process: give async_save AsyncCheckpointerType.THREAD, the default")

    def commit(
        self,
        alone: bool,
        find: Callable[[], tuple[dict[str, Shard], dict[str, FileInput]]],
        message: str,
        told: Told,
    ) -> Version:
        """Commit what this rank finds, together with the other ranks unless it is alone."""
        with self._lock:
            writer = self._opened(alone)
            if isinstance(writer, GroupWriter):
                try:
                    shards, files = find()
                except BaseException as error:
                    writer.refuse(error)
                self.saved = writer.commit(shards, message, **(told | {"files": files}))
            else:
                shards, files = find()
                state = {name: whole(name, shard) for name, shard in shards.items()}
                self.saved = writer.commit(state, message, **(told | {"files": files}))
            return self.saved

    def close(self) -> None:
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()

    def _opened(self, alone: bool) -> Writer | GroupWriter:
        if self._writer is not None and isinstance(self._writer, GroupWriter) == alone:
            writer, self._writer = self._writer, None
            writer.close()
        if self._writer is None and alone:
            self._writer = self.repo.writer(self.branch, **self.options)
        elif self._writer is None:
            group = dist.group.WORLD if self.group is None else self.group
            assert group is not None  # dcp has just used it
            self._writer = self.repo.writer(self.branch, group=group, timeout=self.timeout, **self.options)
        assert self._writer is not None  # one of the two
        return self._writer
