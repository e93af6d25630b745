"""A repository: where versions are committed, looked up, checked out and rolled back.

    repo = deltavc.init("s3://bucket/run-7", db="postgresql://host/lineage")
    with repo.writer("main") as w:
        w.commit(model, step=1, metrics={"reward": 0.7})
    state = repo.checkout("main~3")

The bucket is the truth; the database is its index, and follows it whenever a ref is asked for.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from deltavc.bisecting import Bisecting
from deltavc.committing import PATIENCE, Committing
from deltavc.errors import BadCheckpoint, BranchMoved, RefExists, UnknownRef
from deltavc.freshness import Freshness
from deltavc.keeping import Keeping
from deltavc.lineage import names
from deltavc.lineage.index import Index
from deltavc.lineage.refs import Refs
from deltavc.lineage.resolve import resolve
from deltavc.lineage.settings import SettingsRef
from deltavc.lineage.standing import has_way, move_to
from deltavc.metadata import default_author
from deltavc.serving import Serving
from deltavc.store.objects import Store
from deltavc.store.transfers import DEFAULT_MEMORY, Transfers
from deltavc.tending import Tending
from deltavc.version import Version
from deltavc.watching import Watching

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import ProcessGroup

    from deltavc.access import Access
    from deltavc.diff import Diff
    from deltavc.lineage.records import RefEntry
    from deltavc.reader import Checkout
    from deltavc.weights.state import State

log = logging.getLogger(__name__)


class Repo(Committing, Keeping, Tending, Serving, Bisecting, Watching):
    """An open repository. Safe to use from several threads; make one with `deltavc.init` or `deltavc.open`."""

    def __init__(self, store: Store, index: Index, repository_id: str) -> None:
        super().__init__(index, Refs(store))
        self.id = repository_id
        self._store = store
        self._transfers = Transfers()
        self._settings = SettingsRef(store, self._refs)
        self._freshness = Freshness(store, self._transfers, self._settings)
        self._author = default_author()

    @property
    def url(self) -> str:
        """Where the repository is, without credentials."""
        return self._store.url

    @property
    def database(self) -> str | None:
        """Where its database is, without a password; None when it was opened without one."""
        return self._index.place

    def rollback(self, branch: str, to: str, reason: str = "") -> Version:
        """Move a branch back to an earlier version. Nothing is lost: the reflog keeps where it was, and why.

        Raises:
            UnknownRef, AmbiguousRef: of the branch or the version.
            NoPath: the version's weights were not kept.
            BranchMoved: somebody else moved the branch meanwhile.
        """
        target = resolve(self._index, to, branch)
        version = Version.known(self._index.version(target), branch)
        self._move(names.branch_ref(branch), target, reason)
        return version

    # --- checkout ---

    def checkout(
        self,
        ref: str = "main",
        *,
        device: torch.device | str = "cpu",
        into: Mapping[str, Any] | torch.nn.Module | None = None,
        tensors: Sequence[str] | None = None,
        path: str | Path | None = None,
        overwrite: bool = False,
        group: ProcessGroup | None = None,
        timeout: float = PATIENCE,
        memory: int = DEFAULT_MEMORY,
    ) -> Checkout:
        """Put a version's weights together and prove that they are that version.

        Args:
            device: where new tensors go.
            into: live tensors to write to, in place; after an error they hold no version. DTensors and
                `deltavc.Shard`s among them are what a rank holds of larger tensors: it reads only the frames that meet
                them, and need not hold all tensors.
            tensors: names, or patterns of names, to check out; a single one as a string; None for all.
            path: also write them there: .safetensors files laid out as they were committed, and the version's
                files. The directory has to be empty unless `overwrite`.
            group: a process group: all its ranks check out what they hold, and prove together that it is the version,
                parts too. Every rank calls it, with `into=`. Without it, parts rest on the checksums of frames.
            timeout: seconds that a rank waits for the others, while they read their parts.
            memory: bytes it may take beyond the tensors.

        Raises:
            UnknownRef, AmbiguousRef, NoPath; LayoutMismatch: `into` or `tensors` do not fit the version.
            Corruption: something on the way is damaged, and no weights are handed over.
            BadCheckpoint: `path` cannot be written to, or tensors that its files cannot hold, all named.
            PeerFailed, GroupBroken: another rank failed, or did not answer.
        """
        from deltavc import reader
        from deltavc.lineage.plan import plan
        from deltavc.lineage.replan import replanning
        from deltavc.live import Live
        from deltavc.parts import in_parts

        if group is not None or (into is not None and in_parts(into)):
            return self._checkout_parts(ref, into, tensors, path, group, timeout, memory)
        version = self.resolve(ref)
        record = self._index.version(version).record
        live = None if into is None else Live.of(into)
        if path is not None and tensors is not None:
            raise BadCheckpoint(str(path), "a checkpoint holds all tensors; leave out tensors=")
        objects = self._access(memory).objects

        def attempt() -> Checkout:
            way = plan(self._index, version, forward_only=True)
            return reader.checkout(record, way, objects, device=device, into=live, patterns=tensors)

        state = replanning(self._index, attempt)
        if path is not None:
            from deltavc.weights.output import write_checkpoint

            layout = objects.layout(record.layout, version)
            extras = {name: self._file_writer(version, name) for name in record.files}
            write_checkpoint(path, state.items(), layout, record.source, extras, overwrite=overwrite)
        return state

    def read_file(self, ref: str, name: str) -> bytes:
        """A file that is kept with a version (`files=` of its commit), checked.

        Raises:
            UnknownRef: no such version, or it keeps no file of this name.
            Corruption: it is damaged or gone.
        """
        from deltavc.files import read_file

        version = self.resolve(ref)
        files = self._index.version(version).record.files
        if name not in files:
            raise UnknownRef(f"{ref}:{name}", "the version keeps no file of this name", tuple(files))
        return read_file(self._store, files[name], version)

    def diff(self, a: str, b: str, *, memory: int = DEFAULT_MEMORY) -> Diff:
        """Compare two versions tensor by tensor. Holds both in memory. Raises what `checkout` raises."""
        from deltavc.diff import compare

        old, new = self.checkout(a, memory=memory), self.checkout(b, memory=memory)
        objects = self._access(memory).objects
        layouts = [objects.layout(self._index.version(state.version).record.layout) for state in (old, new)]
        return compare(old.version, new.version, old, new, *layouts)

    def identify(self, state: State) -> list[Version]:
        """Versions that hold exactly these weights, newest first; also from files, which forget ties.

        Raises:
            BadState, UnsupportedDtype, BadCheckpoint: the state cannot be read.
        """
        from deltavc.identify import root_as, state_fingerprints
        from deltavc.weights.state import open_state

        view = open_state(state)
        values = state_fingerprints(view)
        tensors = {tensor.name: tensor for tensor in view.layout.tensors}
        self._index.catch_up_all()
        found: set[str] = set()
        for layout_id in self._index.layouts():
            layout = self._index.layout(layout_id)
            root = None if layout is None else root_as(layout, tensors, values)
            if root is not None:
                found.update(self._index.with_fingerprint(root))
        versions = [Version.known(info) for info in self._index.versions(sorted(found))]
        return sorted(versions, key=lambda version: version.time, reverse=True)

    # --- branches and tags ---

    def branch(self, name: str, at: str = "main") -> Version:
        """Make a branch at a version. Raises BadRefName, RefExists, UnknownRef, AmbiguousRef, NoPath."""
        return self._create("branch", name, at)

    def tag(self, name: str, at: str = "main") -> Version:
        """Name a version for good: a tag never moves. Raises BadRefName, RefExists, UnknownRef, AmbiguousRef."""
        return self._create("tag", name, at)

    def delete_branch(self, name: str) -> None:
        """Delete a branch. Its versions stay, and can be found by id and in the reflog. Raises UnknownRef."""
        self._move(names.branch_ref(name), None, "deleted")

    def delete_tag(self, name: str) -> None:
        """Delete a tag. Raises UnknownRef."""
        self._move(names.tag_ref(name), None, "deleted")

    # --- life ---

    def close(self) -> None:
        """Let go of threads and database connections."""
        self._transfers.close()
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltavc.Repo {self.url}>"

    # --- inside ---

    def _access(self, memory: int) -> Access:
        from deltavc.access import Access
        from deltavc.walk import Objects

        objects = Objects(self._store, self._transfers, memory)
        return Access(self._store, self._transfers, objects, self._refs, self._index, self._freshness, self._author)

    def _checkout_parts(
        self,
        ref: str,
        into: Mapping[str, Any] | torch.nn.Module | None,
        tensors: Sequence[str] | None,
        path: str | Path | None,
        group: ProcessGroup | None,
        timeout: float,
        memory: int,
    ) -> Checkout:
        from deltavc.ranks.meeting import council_of
        from deltavc.sharded.checkout import checkout, checkout_together

        if into is None or path is not None:
            raise ValueError("what many ranks hold is checked out into=, and not to a path")
        if group is None:
            return checkout(self._access(memory), self.resolve(ref), into, tensors)
        return checkout_together(self._access(memory), council_of(group, None, timeout), ref, into, tensors)

    def _create(self, what: str, name: str, at: str) -> Version:
        ref = names.branch_ref(name) if what == "branch" else names.tag_ref(name)
        other = names.tag_ref(name) if what == "branch" else names.branch_ref(name)
        target = self.resolve(at)
        version = Version.known(self._index.version(target))
        self._index.catch_up([ref, other])
        for kind, taken in ((what, ref), ("tag" if what == "branch" else "branch", other)):
            entry = self._index.head(taken)
            if entry is not None and entry.new is not None:
                raise RefExists(kind, name, entry.new)
        # A tag may mark a version without weights; a branch could not be gone on from.
        move = self._move_to if what == "branch" or has_way(self._index, target) else self._refs.move
        try:
            entry = move(ref, self._index.head(ref), target, self._author, f"created at {at}")
        except BranchMoved as error:
            raise RefExists(what, name, error.found or "another version") from error
        self._index.note([entry])
        return version

    def _move(self, ref: str, target: str | None, why: str) -> None:
        self._index.catch_up([ref])
        known = self._index.head(ref)
        if known is None or known.new is None:
            what = "tag" if ref.startswith(names.TAGS) else "branch"
            raise UnknownRef(ref.partition("/")[2], f"there is no {what} of this name")
        if target is None:
            entry = self._refs.move(ref, known, None, self._author, why)
        else:
            entry = self._move_to(ref, known, target, self._author, why)
        self._index.note([entry])

    def _move_to(self, ref: str, known: RefEntry | None, target: str, who: str, why: str) -> RefEntry:
        return move_to(self._index, self._refs, ref, known, target, who, why)

    def _file_writer(self, version: str, name: str) -> Callable[[BinaryIO], object]:
        from deltavc.files import write_file

        file = self._index.version(version).record.files[name]
        return functools.partial(write_file, self._store, file, version)
