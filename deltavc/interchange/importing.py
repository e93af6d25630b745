"""Importing: checkpoints on disk, in order, become versions of one branch.

    checkpoint-10 ── checkpoint-20 ── checkpoint-30        on disk, by step
         │                │                │
       step 10  ──────  step 20  ──────  step 30           versions, each a delta from the one before

What is on the branch already is recognised by its step and then proven by its fingerprint, so an import that was
interrupted goes on where it was, and one that is run again after more training takes in what is new.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltavc import held
from deltavc.errors import BadCheckpoint, BranchMoved
from deltavc.files import check_files
from deltavc.held import Allocate
from deltavc.identify import root_as, state_fingerprints
from deltavc.interchange.found import FilesKept, Found, check_files_kept, find
from deltavc.interchange.trainer_log import STATE, metrics_at
from deltavc.lineage import names
from deltavc.lineage.info import VersionInfo
from deltavc.metadata import Metadata
from deltavc.repo import Repo
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.weights.files import Checkpoint
from deltavc.weights.state import open_state
from deltavc.writer import WriterOptions

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

FROM = "imported_from"
"""The fact of a version that names the checkpoint it was."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint, or a published version, and the version it became. version: None in a dry run.

    new: whether this call committed it, or would; otherwise it was there. stored_bytes: what that added to the store.
    """

    path: str
    step: int
    version: str | None
    new: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    stored_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        told = {"path": self.path, "step": self.step, "version": self.version, "new": self.new}
        return told | {"metrics": dict(self.metrics), "stored_bytes": self.stored_bytes}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did, or would do: the checkpoints in the order of their steps."""

    branch: str
    dry_run: bool
    checkpoints: tuple[Taken, ...]

    @property
    def num_new(self) -> int:
        """How many versions were made, or would be."""
        return sum(taken.new for taken in self.checkpoints)

    @property
    def stored_bytes(self) -> int:
        """What all of them added to the store in packs and files."""
        return sum(taken.stored_bytes for taken in self.checkpoints)

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        told = {"branch": self.branch, "dry_run": self.dry_run, "num_new": self.num_new}
        return told | {"checkpoints": [taken.as_json() for taken in self.checkpoints]}


def import_checkpoints(
    repo: Repo,
    paths: str | Path | Iterable[str | Path],
    branch: str = "main",
    *,
    files: FilesKept = "small",
    dry_run: bool = False,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Imported:
    """Commit checkpoints in the order of their steps, with what a Trainer logged at each as metrics.

    Args:
        paths: a Trainer's output folder, a folder of checkpoints, checkpoints, or patterns of paths. A checkpoint is a
            directory of .safetensors files, or with a pytorch_model.bin; a DCP directory; a .safetensors file; or a
            .pt, .pth, .bin or .ckpt file of plain tensors.
        branch: it is made if there is none of this name.
        files: which other files to keep with each version, see `FilesKept`.
        dry_run: commit nothing; say what would be.
        memory: bytes it may take beyond one checkpoint.
        progress: called as it goes on.

    Raises:
        BadCheckpoint: a path without checkpoints, one that cannot be read, tells no step or is still being written; a
            step that the branch has with other weights, or has gone past. All are opened first: nothing was committed
            then.
        UnsupportedDtype, BadState, BadMetadata: as for `repo.commit`.
        BranchMoved: somebody else committed meanwhile.
        BadRefName; StoreError. Checkpoints before the one that failed are committed; run it again to go on.
    """
    kept = check_files_kept(files)
    tell = progress or (lambda doing, done, total: None)
    found = find([paths] if isinstance(paths, str | Path) else paths)
    head, known = history(repo, branch, found[0].step)
    _check_order(found, branch, known)
    _check_finished([one for one in found if one.step not in known], found)
    for number, one in enumerate(found):
        tell("looking", number, len(found))
        with _room(one) as allocate:
            _checked(one, allocate, kept)
    taken: list[Taken] = []
    for one in found:
        if one.step in known:
            tell("comparing", len(taken), len(found))
            _check_same(repo, one, branch, known[one.step])
            taken.append(Taken(str(one.path), one.step, known[one.step].id, False))
    missing = found[len(taken) :]
    if dry_run:
        taken += [Taken(str(one.path), one.step, None, True, _metrics(one)) for one in missing]
    elif missing:
        taken += _commit(repo, branch, head, missing, kept, memory, lambda done: tell("committing", done, len(missing)))
    return Imported(branch, dry_run, tuple(taken))


def history(repo: Repo, branch: str, least: int) -> tuple[str | None, dict[int, VersionInfo]]:
    """Where a branch is, and the versions along its first parents by step, back to the step `least`.

    Raises:
        BadRefName
    """
    ref = names.branch_ref(branch)
    repo._index.catch_up([ref])
    entry = repo._index.head(ref)
    head = version = entry.new if entry is not None else None
    found: dict[int, VersionInfo] = {}
    while version is not None:
        info = repo._index.version(version)
        step = info.record.step
        if step is not None:
            found.setdefault(step, info)
            if step < least:
                break
        version = next(iter(info.record.parents), None)
    return head, found


def _check_order(found: list[Found], branch: str, known: Mapping[int, VersionInfo]) -> None:
    newest = max(known, default=None)
    for one in found:
        if newest is not None and one.step < newest and one.step not in known:
            raise BadCheckpoint(
                str(one.path),
                f"is step {one.step}, which branch {branch!r} has not, and has gone past: it is at step {newest}. "
                "Import into another branch",
            )


def _check_finished(new: list[Found], found: list[Found]) -> None:
    """Refuse what a Trainer is still writing: its log comes last, after the tokenizer and the optimizer's state.

    Source: `Trainer._save_checkpoint` of transformers 5.24.
    """
    logged = {one.path.parent for one in found if one.has_log}
    for one in new:
        if one.path.parent in logged and not one.has_log and one.is_trainers:
            raise BadCheckpoint(
                str(one.path),
                f"has no {STATE}, as those beside it have and a Trainer writes last; it is still being written, or was "
                "cut off. Import it later, or name the others",
            )


def _checked(one: Found, allocate: Allocate, kept: FilesKept) -> Checkpoint:
    """The checkpoint, opened, after what goes with it was found fit to commit."""
    checkpoint = one.open(allocate, kept)
    check_files(checkpoint.extras)
    Metadata.of(one.path.name, one.step, _metrics(one), _facts(one))
    return checkpoint


def _check_same(repo: Repo, one: Found, branch: str, info: VersionInfo) -> None:
    with _room(one) as allocate:
        view = open_state(one.open(allocate, "none"))
        values = state_fingerprints(view)
    layout = repo._access(DEFAULT_MEMORY).objects.layout(info.record.layout, info.id)
    tensors = {tensor.name: tensor for tensor in view.layout.tensors}
    if root_as(layout, tensors, values) != info.record.fingerprint:
        raise BadCheckpoint(
            str(one.path),
            f"is step {one.step}, and branch {branch!r} has other weights at that step, version {info.id[:12]}; "
            "import into another branch",
        )


def _commit(
    repo: Repo,
    branch: str,
    head: str | None,
    missing: list[Found],
    kept: FilesKept,
    memory: int,
    tell: Callable[[int], None],
) -> Iterator[Taken]:
    options = WriterOptions(keep="host", memory=memory)
    with repo._open_writer(branch, options, () if head is None else None) as writer:
        if writer.version != head:
            raise BranchMoved(branch, head, writer.version)
        for number, one in enumerate(missing):
            tell(number)
            with _room(one) as allocate:
                version = writer.commit(
                    one.open(allocate, kept), one.path.name, step=one.step, metrics=_metrics(one), meta=_facts(one)
                )
            log.info("imported %s as %s", one.path, version)
            yield Taken(str(one.path), one.step, version.id, True, version.metrics, version.stored_bytes)


def _metrics(one: Found) -> dict[str, float]:
    found = (metrics_at(folder, one.step) for folder in one.logs)
    return next((metrics for metrics in found if metrics), {})


def _facts(one: Found) -> dict[str, str]:
    return {FROM: str(one.path)}


@contextmanager
def _room(one: Found) -> Iterator[Allocate]:
    """Room for tensors that are put together from pieces: memory, or temporary files where they are many."""
    if one.nbytes <= held.machine_memory() // 4:
        yield held.fresh("cpu")
        return
    with tempfile.TemporaryDirectory(prefix="deltavc-import-") as directory:
        yield held.on_disk(Path(directory))
