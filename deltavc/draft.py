"""A draft: a commit whose state was read and whose objects are on their way, before its ref entry.

Nothing refers to a draft's objects until the ref entry does, so a draft that is given up leaves nothing but
bytes for the clean-up to find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from deltavc import edges, fingerprints, packing
from deltavc.access import Access
from deltavc.base import Base, Undo
from deltavc.delta.codecs.base import Codec
from deltavc.errors import ObjectMissing, WrongWeights
from deltavc.files import FileInput, Files
from deltavc.freshness import Mark
from deltavc.held import HeldLanes
from deltavc.layout import Layout
from deltavc.lineage.records import EdgeRecord, FileRef, VersionRecord, layout_key
from deltavc.metadata import Metadata
from deltavc.packing import Packs
from deltavc.snapshots import Trail
from deltavc.store.objects import Store
from deltavc.timings import Timings
from deltavc.version import Version
from deltavc.weights.state import StateView


@dataclass(frozen=True, slots=True)
class Request:
    """What a commit is asked to be."""

    metadata: Metadata
    parents: tuple[str, ...]
    files: Mapping[str, FileInput]
    parent_files: Mapping[str, FileRef]
    codec: Codec | None
    snapshot: bool
    partial: bool
    memory: int


@dataclass
class Draft:
    """Records of a commit that has not landed, the uploads they need, and how to take the base back."""

    record: VersionRecord
    layout: Layout
    edges: tuple[EdgeRecord, ...]
    expected: str | None
    """where the branch has to be for this commit; None when it has to be new"""
    undo: Undo[Any]
    trail: Trail
    trail_before: Trail
    files_before: Mapping[str, FileRef]
    changed_lanes: int
    stored_bytes: int
    timings: Timings
    mark: Mark
    """before anything of it was uploaded, or chosen to be used again"""
    packs: list[Packs]
    files: Files
    uploads: list[Future[None]] = field(default_factory=list)

    def wait(self) -> None:
        """Wait until every object is in the store; raises what an upload raised."""
        for pack in self.packs:
            pack.wait()
        self.files.wait()
        for upload in self.uploads:
            upload.result()

    @property
    def bases(self) -> frozenset[str]:
        """The versions that its edges lead from."""
        return frozenset(edge.base for edge in self.edges if edge.base is not None)

    @property
    def whole(self) -> bool:
        """Whether an edge leads to it from nothing."""
        return any(edge.base is None for edge in self.edges)

    def abandon(self) -> None:
        """Stop what has not begun to be uploaded."""
        for pack in self.packs:
            pack.abandon()
        self.files.abandon()
        for upload in self.uploads:
            upload.cancel()

    def lost(self, store: Store) -> str | None:
        """After it landed: what of it clean-up took before it did, if it took anything. Raises StoreError."""
        return lost(store, self.record, self.edges)

    def version(self, branch: str) -> Version:
        """What the caller gets to see of it."""
        return Version.of(
            self.record,
            branch=branch,
            num_lanes=self.layout.num_lanes,
            changed_lanes=self.changed_lanes,
            stored_bytes=self.stored_bytes,
            timings=self.timings.as_dict(),
        )


def lost(store: Store, record: VersionRecord, found: Sequence[EdgeRecord]) -> str | None:
    """What of a version and its edges clean-up took, if it took anything. Raises StoreError."""
    for file in record.files.values():
        try:
            store.stat(file.key)
        except ObjectMissing:
            return f"{file.key} is gone"
    return edges.lost(store, found)


def draft(
    access: Access,
    base: Base[HeldLanes],
    trail: Trail,
    view: StateView,
    request: Request,
    expected: str | None,
    drain: Callable[[], None],
) -> Draft:
    """Read a state into the base and send off everything but the ref entry.

    Args:
        drain: waits until the commits before this one have landed. Called where their packs are read.

    After an exception the base is where it was (or lost, and says so).
    """
    mark = access.freshness.mark()
    timings = Timings("read", "diff", "verify", "encode", "upload", "index")
    before = base.layout
    layout = _merged(before, view.layout) if request.partial and before is not None else view.layout
    if before is not None and before.tensors == layout.tensors:
        layout = before  # its id is known, which takes a while to work out for thousands of tensors
    undo = base.begin(request.memory // 2)
    packs = [Packs(layout, access.store, access.transfers, request.memory, timings)]
    files = Files(access.store, access.transfers, timings)
    try:
        files.take(request.files, request.parent_files)
        found = packing.read(
            view, layout, base, undo, packs[0], codec=request.codec, memory=request.memory, timings=timings
        )
        record = record_of(request, layout, base.fingerprints, files.refs, view.source)
        written = [edges.delta(undo.before, layout, base.fingerprints, record.id, packs[0].packed, found)]
        if request.snapshot and written[0].base is not None:
            packs.append(Packs(layout, access.store, access.transfers, request.memory, timings))
            reused = trail.reusable(layout, base.fingerprints) - found.changed
            if reused:
                drain()
            whole = edges.snapshot(
                access.objects, base, layout, record.id, packs[1], trail, reused, request.codec, timings
            )
            written.append(whole)
        made = Draft(
            record=record,
            layout=layout,
            edges=tuple(written),
            expected=expected,
            undo=undo,
            trail=trail.after(written[0], layout) if len(written) == 1 else Trail(snapshot=written[1]),
            trail_before=trail,
            files_before=request.parent_files,
            changed_lanes=found.changed_lanes,
            stored_bytes=sum(pack.nbytes for pack in packs) + files.nbytes,
            timings=timings,
            mark=mark,
            packs=packs,
            files=files,
        )
        new_layout = before is None or before.id != layout.id
        made.uploads = upload(access, record, layout, made.edges, timings, new_layout)
    except BaseException as error:
        for pack in packs:
            pack.abandon()
        files.abandon()
        base.take_back(undo)
        base.lost = base.lost or isinstance(error, WrongWeights)
        raise
    base.version = record.id
    return made


def _merged(base: Layout, view: Layout) -> Layout:
    """The base's layout with the view's tensors in place of, or added to, its own.

    What is tied to a tensor of the view stays tied to it, also where the view ties that one to another.
    """
    owner = {tensor.name: tensor.tie or tensor.name for tensor in view.tensors}
    kept = (tensor for tensor in base.tensors if tensor.name not in owner)
    return Layout.of(
        [*(replace(tensor, tie=owner.get(tensor.tie or "", tensor.tie)) for tensor in kept), *view.tensors]
    )


def record_of(
    request: Request,
    layout: Layout,
    values: Mapping[str, int],
    files: Mapping[str, FileRef],
    source: dict[str, Any] | None = None,
) -> VersionRecord:
    """The version to be. values: its fingerprints by name."""
    told = request.metadata
    return VersionRecord(
        parents=request.parents,
        layout=layout.id,
        fingerprint=fingerprints.root(layout, values),
        step=told.step,
        message=told.message,
        author=told.author,
        time=told.time,
        metrics=told.metrics,
        meta=told.meta,
        files=dict(files),
        source=source,
    )


def upload(
    access: Access,
    record: VersionRecord,
    layout: Layout,
    made: Sequence[EdgeRecord],
    timings: Timings,
    new_layout: bool,
) -> list[Future[None]]:
    """Begin to upload the records of a commit, all but the ref entry."""
    objects: list[tuple[str, Any]] = [(edge.key, edge.body) for edge in made]
    objects.append((record.key, record.body))
    if new_layout:
        objects.append((layout_key(layout.id), layout.body))
    access.objects.add_layout(layout)

    def put(key: str, body: bytes) -> None:
        with timings.stage("upload"):
            access.store.put(key, body)

    return [access.transfers.submit(put, key, body) for key, body in objects]
