"""The reader of distributed checkpoints: versions, in whatever pieces the ranks that load them hold.

To dcp every tensor of a version is one chunk, so a rank's request says which box it wants of the whole; the frames that
meet it are read by range, checked whole, and cut. In what pieces it was saved does not matter.

    plan (dcp) ──> all ranks go to the version that rank 0 found ──> tensors, in place ──> values
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from deltavc.errors import BadState, LayoutMismatch
from deltavc.integrations import dcp_values
from deltavc.integrations.dcp_ids import step_of, text_of
from deltavc.integrations.dcp_values import Paths
from deltavc.lanes import lanes, torch_dtype
from deltavc.layout import TensorSpec
from deltavc.repo import Repo
from deltavc.shard import Shard
from deltavc.store.transfers import DEFAULT_MEMORY

_THREADS = 8
"""How many files of values are read at once."""


class DeltaReader(StorageReader):
    """A storage reader for `dcp.load`, of a version that dcp saved or that anything else committed.

    Tensors that a rank loads whole are proven to be the version's; parts rest on the checksums of the frames that they
    came from.
    """

    def __init__(self, repo: Repo, ref: str = "main", *, memory: int = DEFAULT_MEMORY) -> None:
        """
        Args:
            ref: what to load. A `checkpoint_id` of a `dcp.load` counts instead, for that one: a step of this branch if
                it names a step, any ref otherwise. Every rank looks the ref up, and loads what rank 0 has found.
            memory: bytes that loading may take beyond the tensors.
        """
        self._repo = repo
        self._ref = ref
        self._memory = memory
        self._checkpoint_id: str | None = None
        self._found: _Found | None = None

    # --- what dcp calls, in this order ---

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._checkpoint_id = None if checkpoint_id is None else text_of(checkpoint_id)

    # Without **kwargs: where dcp finds them it tries to read metadata of single ranks next.
    def read_metadata(self) -> Metadata:
        """What is in the version, as dcp describes it.

        Raises:
            UnknownRef, AmbiguousRef; Corruption: what describes it is damaged or gone.
        """
        wanted, self._checkpoint_id = self._wanted(), None  # dcp says nothing where a load has none
        self._found = _Found.at(self._repo, wanted)
        return self._found.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._found is not None  # metadata was read
        return replace(plan, storage_data=self._found.version)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return [replace(plan, storage_data=plans[0].storage_data) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._found is not None  # metadata was read
        found = self._found
        if not isinstance(plan.storage_data, str):
            raise BadState("the load planner did not hand on storage_data, which says what version all ranks load")
        if plan.storage_data != found.version:
            self._found = found = found.moved(self._repo, plan.storage_data, plan.items)
        tensors = [item for item in plan.items if item.type is LoadItemType.TENSOR]
        self._read_tensors(tensors, planner, found)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, dcp_values.body_of(found.values[item.storage_index.fqn]))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # a repository is opened, and not guessed from an id

    # --- inside ---

    def _wanted(self) -> str:
        if self._checkpoint_id is None:
            return self._ref
        step = step_of(self._checkpoint_id)
        return self._checkpoint_id if step is None else f"{self._ref}@step:{step}"

    def _read_tensors(self, items: Sequence[ReadItem], planner: LoadPlanner, found: _Found) -> None:
        """Read what is requested of each tensor, into what it is requested for.

        Raises:
            LayoutMismatch, BadState: it does not fit the version.
            Corruption: something on the way is damaged.
        """
        targets = _targets(items, planner, found)
        parts: dict[str, list[Shard]] = {}
        for target in targets:
            if target.lands.numel():
                shard = Shard(target.lands, target.spec.shape, tuple(target.item.storage_offsets))
                parts.setdefault(target.spec.name, []).append(shard)
        # One part of each tensor at a time: hardly any rank holds more.
        for row in itertools.zip_longest(*parts.values()):
            into = {name: shard for name, shard in zip(parts, row, strict=True) if shard is not None}
            self._repo.checkout(found.version, into=into, memory=self._memory)
        for target in targets:
            target.settle()
            planner.commit_tensor(target.item, target.live)


@dataclass(frozen=True, slots=True)
class _Found:
    """A version that is to be loaded: its tensors by name, the other values that it keeps, and how names are nested."""

    version: str
    specs: Mapping[str, TensorSpec]
    values: Mapping[str, Any]
    paths: Paths

    @classmethod
    def at(cls, repo: Repo, ref: str) -> _Found:
        version = repo.version(ref)
        specs = {
            tensor["name"]: TensorSpec(tensor["name"], tensor["dtype"], tuple(tensor["shape"]), tensor["tie"])
            for tensor in repo.tensors(version.id)
        }
        names = [name for name in version.files if dcp_values.is_values_file(name)]
        values: dict[str, Any] = {}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="deltavc-dcp") as threads:
            bodies = threads.map(partial(repo.read_file, version.id), names)
            for name, body in zip(names, bodies, strict=True):
                values |= dcp_values.read_values(body, name, version.id)
        paths: Paths = {}
        if dcp_values.PATHS in version.files:
            paths = dcp_values.read_paths(repo.read_file(version.id, dcp_values.PATHS), version.id)
        return cls(version.id, specs, values, paths)

    def metadata(self) -> Metadata:
        """It as dcp describes a checkpoint: each tensor one chunk."""
        stored: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
            name: BytesStorageMetadata() for name in self.values
        }
        for name, spec in self.specs.items():
            chunk = ChunkStorageMetadata(Size([0] * len(spec.shape)), Size(spec.shape))
            properties = TensorProperties(dtype=torch_dtype(spec.dtype))
            stored[name] = TensorStorageMetadata(properties, Size(spec.shape), [chunk])
        nesting = {name: self.paths.get(name, (name,)) for name in stored}
        return Metadata(stored, nesting, storage_meta=StorageMeta(checkpoint_id=self.version))

    def moved(self, repo: Repo, version: str, items: Sequence[ReadItem]) -> _Found:
        """The version that rank 0 found, where this rank found this one: the branch moved meanwhile.

        Args:
            items: what was planned for this one.

        Raises:
            LayoutMismatch: something of it is not in that one, or has another shape.
        """
        other = _Found.at(repo, version)
        for item in items:
            name = item.storage_index.fqn
            here, there = self.specs.get(name), other.specs.get(name)
            fits = name in other.values if here is None else there is not None and here.shape == there.shape
            if not fits:
                where = f"{version}, which rank 0 loads, as it is in {self.version}, which this rank found"
                raise LayoutMismatch(name, f"is not in {where}: name a version to load")
        return other


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """What is requested of one tensor, and where it goes.

    live: the memory that it is for. lands: where it is read to: live, or a buffer of the stored dtype. twin: another
    target with the same live memory, which is read there.
    """

    item: ReadItem
    spec: TensorSpec
    live: Tensor
    lands: Tensor
    twin: _Target | None

    def settle(self) -> None:
        """Bring what was read to live memory. Raises LayoutMismatch if that is to hold something else as well."""
        if self.lands is self.live:
            return
        if self.twin is None:
            self.live.copy_(self.lands)
        elif not torch.equal(lanes(self.lands.to(self.live)), lanes(self.live)):
            twin = self.twin.spec.name
            raise LayoutMismatch(
                self.spec.name,
                f"shares memory with {twin!r} in what is loaded into, and has other values in the version; "
                "both hold those of the latter now",
            )


def _targets(items: Sequence[ReadItem], planner: LoadPlanner, found: _Found) -> list[_Target]:
    first: dict[Any, _Target] = {}
    targets = []
    for item in items:
        spec = found.specs[item.storage_index.fqn]
        live = planner.resolve_tensor(item).detach()
        if live.shape != item.lengths:
            reason = f"has room for {list(live.shape)} where {list(item.lengths)} is to be loaded"
            raise LayoutMismatch(spec.name, reason)
        identity = (live.device, live.data_ptr(), live.shape, live.stride(), live.dtype)
        twin = first.get(identity) if live.numel() else None
        dtype = torch_dtype(spec.dtype)
        plain = twin is None and live.dtype == dtype
        lands = live if plain else torch.empty(live.shape, dtype=dtype, device=live.device)
        target = _Target(item, spec, live, lands, twin)
        first.setdefault(identity, target)
        targets.append(target)
    return targets
