"""Importing a delta directory: each published version is applied to its base, verified, and committed.

    base ── weight_v000001 ── weight_v000002 ...         a copy of the weights is moved along
      │           │                 │                    each tensor's checksum is compared before anything is committed
      └────────  step 1  ────────  step 2                versions of a branch that starts at the base

A version that is on the branch already is not committed again: its change is applied all the same, and the weights it
leads to are proven to be those of the version.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from deltavc import fingerprints, held, reader
from deltavc.change import Box
from deltavc.errors import BadDelta, BadPayload, BranchMoved, UnknownRef
from deltavc.held import HeldLanes
from deltavc.identify import root_as, state_fingerprints
from deltavc.interchange.delta_dir import Published, published
from deltavc.interchange.found import SMALL_BYTES
from deltavc.interchange.importing import FROM, Imported, Progress, Taken
from deltavc.interchange.payload import Bytes, apply, checksum
from deltavc.lanes import from_lanes
from deltavc.layout import Layout
from deltavc.lineage import names
from deltavc.lineage.info import VersionInfo
from deltavc.repo import Repo
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.weights.files import Checkpoint
from deltavc.weights.state import open_state
from deltavc.writer import Writer, WriterOptions

log = logging.getLogger(__name__)

NUMBER = "weight_version"
"""The fact of a version that says which published version it is."""


def import_deltas(
    repo: Repo,
    directory: str | Path,
    base: str | Path,
    branch: str = "main",
    *,
    dry_run: bool = False,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Imported:
    """Commit the versions of a delta directory, as Miles and slime publish them, on the base they build on.

    The number of a published version becomes its step. The other files of the base, and how its tensors lie in their
    files, go with each.

    Args:
        directory: what holds weight_v000001, weight_v000002, ...
        base: the weights that version 0 stands for: a ref, or else the path of a checkpoint, which is then committed as
            step 0. A ref to a version that was imported from such a directory stands for the number it had there.
        branch: it is made, at the base, if there is none of this name. Otherwise it has to come from there.
        dry_run: commit and apply nothing; say what would be.
        memory: bytes it may take beyond the weights, which are held twice, in temporary files if they are large.
        progress: called as it goes on.

    Raises:
        BadDelta: a version is missing, damaged, or builds on another base; or the weights it leads to do not have its
            checksums, or are not those that the branch has for it; or the branch has gone past it without it. Versions
            before it are committed.
        BadCheckpoint, UnsupportedDtype, BadState: of a base that is a path.
        UnknownRef, AmbiguousRef, BadRefName, NoPath, BranchMoved, Corruption; StoreError
    """
    directory = Path(directory)
    found = published(directory)
    if not found:
        raise BadDelta(str(directory), None, "there is no weight_v000001, or a later one, in it")
    tell = progress or (lambda doing, done, total: None)
    head = _head(repo, branch)
    start = _base(repo, base, branch, head, dry_run)
    at = 0 if start is None else _number(start)
    wanted = [version for version in found if version.number > at]
    _check_chain(wanted, at)
    known = {} if start is None else _imported(repo, branch, head, start.id)
    if dry_run or start is None:
        told = ((version, known.get(version.number)) for version in wanted)
        taken = [Taken(str(one.path), one.number, info.id if info else None, info is None) for one, info in told]
        return Imported(branch, dry_run, tuple(taken))
    head = head or _head(repo, branch)
    with ExitStack() as stack:
        weights = _Weights(repo, start, stack)
        options = WriterOptions(keep="disk" if weights.on_disk else "host", memory=memory)
        writer: Writer | None = None
        taken = []
        reached = start.id
        for number, version in enumerate(wanted):
            tell("applying", number, len(wanted))
            if (info := known.get(version.number)) is not None:
                weights.move(version)
                weights.check(version, info)
                taken.append(Taken(str(version.path), version.number, reached := info.id, False))
                continue
            if writer is None and reached != (head or start.id):  # only what changed is committed, onto these weights
                reason = f"branch {branch!r} has gone past it without it; import into another branch"
                raise BadDelta(str(version.path), version.number, reason)
            changed = weights.move(version)
            if writer is None:
                writer = stack.enter_context(repo._open_writer(branch, options, (start.id,) if head is None else None))
                if writer.version != (head or start.id):
                    raise BranchMoved(branch, head or start.id, writer.version)
            taken.append(_commit(writer, weights, version, changed))
    return Imported(branch, False, tuple(taken))


def _head(repo: Repo, branch: str) -> str | None:
    ref = names.branch_ref(branch)
    repo._index.catch_up([ref])
    entry = repo._index.head(ref)
    return None if entry is None else entry.new


def _base(repo: Repo, base: str | Path, branch: str, head: str | None, dry_run: bool) -> VersionInfo | None:
    """The version that the first delta builds on. None in a dry run that would have to commit it."""
    try:
        if not isinstance(base, str):
            raise UnknownRef(str(base))
        return repo._index.version(repo.resolve(base))
    except UnknownRef:
        if not Path(base).exists():
            raise
    view = open_state(base)
    if head is None:
        if dry_run:
            return None
        with repo._open_writer(branch, WriterOptions(keep="host"), ()) as writer:
            made = writer.commit(base, "base", step=0, meta={FROM: str(base), NUMBER: 0})
        return repo._index.version(made.id)
    values, tensors = state_fingerprints(view), {tensor.name: tensor for tensor in view.layout.tensors}
    objects = repo._access(DEFAULT_MEMORY).objects
    for info in _back_from(repo, head):
        if root_as(objects.layout(info.record.layout, info.id), tensors, values) == info.record.fingerprint:
            return info
    raise BadDelta(str(base), None, f"branch {branch!r} has no version with these weights; import into another branch")


def _back_from(repo: Repo, version: str | None) -> Iterator[VersionInfo]:
    while version is not None:
        info = repo._index.version(version)
        yield info
        version = next(iter(info.record.parents), None)


def _number(info: VersionInfo) -> int:
    number = info.record.meta.get(NUMBER, 0)
    return number if type(number) is int and number >= 0 else 0


def _imported(repo: Repo, branch: str, head: str | None, base: str) -> dict[int, VersionInfo]:
    """The versions from the base to the branch's head by their numbers. Raises BadDelta: the branch is not so."""
    found: dict[int, VersionInfo] = {}
    for info in _back_from(repo, head):
        if info.id == base:
            return found
        if NUMBER not in info.record.meta:
            break
        found[_number(info)] = info
    if head is None:
        return {}
    reason = f"branch {branch!r} has versions that are neither the base nor from a delta directory on it"
    raise BadDelta(repo.url, None, f"{reason}; import into another branch")


def _check_chain(wanted: list[Published], at: int) -> None:
    for version in wanted:
        if version.base is not None and version.base != at:
            before = f"version {at} is the last one before it" if at else "it would be the first on the base"
            raise BadDelta(str(version.path), version.number, f"it builds on version {version.base}, and {before}")
        at = version.number


class _Weights:
    """A copy of the weights that is moved from version to version, with what else goes with them."""

    def __init__(self, repo: Repo, start: VersionInfo, stack: ExitStack) -> None:
        record = start.record
        self.layout: Layout = repo._access(DEFAULT_MEMORY).objects.layout(record.layout, start.id)
        self.source = record.source
        self.on_disk = self.layout.nbytes > held.machine_memory() // 4
        where = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltavc-deltas-"))) if self.on_disk else None
        )
        self._lanes = HeldLanes(held.fresh("cpu") if where is None else held.on_disk(where))
        for name in self.layout.stored_names:
            self._lanes.start(name, self.layout)
        repo.checkout(start.id, into={spec.name: self.tensor(spec.name) for spec in self.layout.tensors})
        small = (name for name, file in record.files.items() if file.nbytes <= SMALL_BYTES)
        self.files = {name: repo.read_file(start.id, name) for name in small}
        self._values: dict[str, int] = {}

    def tensor(self, name: str) -> Any:
        spec = self.layout.tensors[self.layout.place[name]]
        return from_lanes(self._lanes[spec.tie or name], spec.dtype)

    def move(self, version: Published) -> list[str]:
        """Bring the weights to a published version; the names of the stored tensors that may have changed.

        Raises:
            BadDelta: they do not have its checksums; they are worth nothing then.
        """
        if version.base is None:
            return self._replace(version)
        done: dict[str, str] = {}
        for name, stored, wanted in version.changes():
            place = self.layout.place.get(name)
            if place is None:
                raise BadDelta(str(version.path), version.number, "is not in its base", name)
            owner = self.layout.tensors[place].tie or name
            target = self._bytes(owner)
            try:
                if owner not in done:  # a change undoes itself: those of tied names are one
                    apply(version.encoding, stored, target)
                    done[owner] = checksum(version.checksum, target)
            except BadPayload as error:
                raise BadDelta(
                    str(version.path), version.number, f"its change is damaged: {error.reason}", name
                ) from error
            except ModuleNotFoundError as error:
                reason = f"its checksums are {version.checksum}, for which {error.name} has to be installed"
                raise BadDelta(str(version.path), version.number, f"{reason}: pip install {error.name}") from error
            if done[owner] != wanted:
                reason = f"applied to its base it has the {version.checksum} {done[owner]}, and {wanted[:80]} is due"
                raise BadDelta(str(version.path), version.number, reason, name)
        for name in done:
            self._values.pop(name, None)
        return list(done)

    def check(self, version: Published, info: VersionInfo) -> None:
        """Raise BadDelta unless the weights are those of a version."""
        for name in self.layout.stored_names - self._values.keys():
            self._values[name] = reader.fingerprint(self.layout, name, self._lanes[name])
        if info.record.fingerprint != fingerprints.root(self.layout, self._values):
            reason = f"the branch has other weights for it, version {info.id[:12]}; import into another branch"
            raise BadDelta(str(version.path), version.number, reason)

    def _replace(self, version: Published) -> list[str]:
        """Take in a whole checkpoint. Only one of the same tensors: a delta without its index would look like one."""
        view = open_state(version.path)
        specs = {spec.name: (spec.dtype, spec.shape) for spec in self.layout.tensors}
        if {spec.name: (spec.dtype, spec.shape) for spec in view.layout.tensors} != specs:
            reason = "it has no delta_encoding, and is no checkpoint of the tensors of its base either"
            raise BadDelta(str(version.path), version.number, reason)
        for spec in view.layout.tensors:
            owner = self.layout.tensors[self.layout.place[spec.name]].tie or spec.name
            new = view.lanes(spec.name, Box.whole(spec.lane_shape))
            if owner == spec.name:
                self._lanes[owner].copy_(new)
            elif not torch.equal(self._lanes[owner], new):  # layouts tie a name to one before it, which is in place
                raise BadDelta(
                    str(version.path), version.number, f"differs from {owner!r}, which it is tied to", spec.name
                )
        self._values.clear()
        return sorted(self.layout.stored_names)

    def _bytes(self, name: str) -> Bytes:
        return self._lanes[name].reshape(-1).view(torch.uint8).numpy()


def _commit(writer: Writer, weights: _Weights, version: Published, changed: list[str]) -> Taken:
    specs = (weights.layout.tensors[weights.layout.place[name]] for name in changed)
    state = Checkpoint(version.path, Layout.of(specs), weights.tensor, weights.source)
    made = writer.commit(
        state,
        version.path.name,
        step=version.number,
        meta={FROM: str(version.path), NUMBER: version.number},
        files=weights.files,
        partial=True,
    )
    log.info("imported %s as %s", version.path, made)
    return Taken(str(version.path), version.number, made.id, True, {}, made.stored_bytes)
