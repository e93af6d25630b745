"""Exporting two versions as a delta directory, which receivers of Miles and slime read.

deltavc export A base/                 the receiver's checkpoint: version 0
deltavc export A..B deltas/ --delta    deltas/weight_v000001
deltavc export B..C deltas/ --delta    deltas/weight_v000002
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from deltavc.errors import BadDelta, LayoutMismatch
from deltavc.interchange.delta_dir import published, write
from deltavc.interchange.payload import Bytes, Checksum, Encoding, checksum, encode
from deltavc.lanes import lanes
from deltavc.layout import Layout
from deltavc.reader import Checkout
from deltavc.repo import Repo
from deltavc.store.transfers import DEFAULT_MEMORY


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. version: the id of the version. files: how many. new: whether this call wrote them."""

    version: str
    path: str
    num_files: int
    nbytes: int
    new: bool = True

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        told = {"version": self.version, "path": self.path, "num_files": self.num_files}
        return told | {"nbytes": self.nbytes, "new": self.new}


def export_deltas(
    repo: Repo,
    old: str,
    new: str,
    directory: str | Path,
    *,
    encoding: Encoding = "xor",
    algorithm: Checksum = "xxh3-128",
    memory: int = DEFAULT_MEMORY,
) -> Exported:
    """Publish the change from one version to another as the next version of a delta directory.

    The receiver's checkpoint has to be what `export` writes of the version that the first delta leads from: files with
    all of its names, tied ones too. Done again, it finds that it is done.

    Args:
        directory: empty or not there, or what earlier calls wrote, the last of them up to `old`.
        encoding: "xor", which has to be applied once; or "overwrite", larger, which may be applied again.
        algorithm: of the checksums. "xxh3-128", as trainers set it by default; "blake3"; "adler32", which takes no
            package on either side.
        memory: bytes it may take beyond both versions, which it holds.

    Raises:
        BadDelta: the directory ends in another version than `old`; a tensor too large for "overwrite"; a name that the
            files cannot hold; or xxhash is not installed.
        LayoutMismatch: the versions do not have the same tensors: a receiver changes files in place.
        UnknownRef, AmbiguousRef, NoPath, Corruption; StoreFull, StoreDenied, BadCheckpoint: of the directory.
    """
    for value, known in ((encoding, get_args(Encoding)), (algorithm, get_args(Checksum))):
        if value not in known:
            raise ValueError(f"{value!r} is none of {', '.join(known)}")
    directory = Path(directory)
    leads = (repo.resolve(old), repo.resolve(new))
    there = published(directory) if directory.exists() else []
    last = there[-1] if there else None
    if last is not None and last.leads == leads:
        return _exported(leads[1], last.path, new=False)
    if last is not None and (last.leads is None or last.leads[1] != leads[0]):
        ends = "in one that deltavc did not write" if last.leads is None else f"at version {last.leads[1][:12]}"
        raise BadDelta(
            str(directory), last.number, f"the directory ends {ends}, and the change begins at {leads[0][:12]}"
        )
    number = last.number + 1 if last is not None else 1
    states = [repo.checkout(version, memory=memory) for version in leads]
    objects = repo._access(memory).objects
    layouts = [objects.layout(repo._index.version(version).record.layout, version) for version in leads]
    _check_tensors(*layouts)
    try:
        changes = _changes(directory, number, layouts[0], states[0], states[1], encoding, algorithm)
        path = write(directory, number, changes, encoding, algorithm, leads)
    except ModuleNotFoundError as error:
        reason = (
            f"checksums {algorithm} take the package {error.name}: pip install {error.name}, or take another checksum"
        )
        raise BadDelta(str(directory), number, reason) from error
    return _exported(leads[1], path, new=True)


def _check_tensors(old: Layout, new: Layout) -> None:
    specs = [{spec.name: (spec.dtype, spec.shape) for spec in layout.tensors} for layout in (old, new)]
    for name in sorted(specs[0].keys() | specs[1].keys()):
        if specs[0].get(name) != specs[1].get(name):
            raise LayoutMismatch(
                name, "is not the same in both versions, and a receiver of deltas changes files in place"
            )


def _changes(
    directory: Path, number: int, layout: Layout, old: Checkout, new: Checkout, encoding: Encoding, algorithm: Checksum
) -> Iterator[tuple[str, bytes, str]]:
    for spec in layout.tensors:
        after = _bytes(new[spec.name])
        try:
            stored = encode(encoding, _bytes(old[spec.name]), after)
        except ValueError as error:
            raise BadDelta(str(directory), number, str(error), spec.name) from error
        if stored is not None:
            yield spec.name, stored, checksum(algorithm, after)


def _bytes(tensor: torch.Tensor) -> Bytes:
    return lanes(tensor).reshape(-1).view(torch.uint8).numpy()


def _exported(version: str, path: Path, new: bool) -> Exported:
    files = [file for file in path.iterdir() if file.is_file()]
    return Exported(version, str(path), len(files), sum(file.stat().st_size for file in files), new)
