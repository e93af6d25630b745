"""Checkpoints written to disk: wholly or not at all, laid out like the one they came from.

Everything is written beside its place, flushed to the disk, and then renamed into it. Tensors are written as
they come, each at its offset, so they may come in any order and none is held longer than it is needed.
File names come from a version, which may be a stranger's: each is checked before anything is created.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import torch
from torch import Tensor

from deltavc.errors import BadCheckpoint, LayoutMismatch, StoreDenied, StoreFull
from deltavc.lanes import dtype_name, lanes
from deltavc.layout import Layout
from deltavc.weights.extras import file_name_fault, is_index, is_tensor_file
from deltavc.weights.shards import Plan, Shard, plan
from deltavc.weights.tensorfile import MAX_HEADER, lay_out

Laid = tuple[bytes, dict[str, int], int]
"""What `tensorfile.lay_out` gives: first bytes, offsets of tensors, size."""

_MARKER = "deltavc.json"
"""A repository has an object of this name."""

GATHERED_BYTES = 64 << 20
"""How much of a tensor that is on a device, or not contiguous, is gathered at a time."""


def write_checkpoint(
    directory: str | Path,
    tensors: Iterable[tuple[str, Tensor]],
    layout: Layout,
    source: Mapping[str, Any] | None = None,
    extras: Mapping[str, Callable[[BinaryIO], object]] | None = None,
    *,
    overwrite: bool = False,
    max_shard: int | None = None,
) -> list[Path]:
    """Write a state as .safetensors files.

    Tied tensors are written under each of their names, since the format cannot tie and loaders look for all of them.

    Args:
        directory: where; made if it is not there.
        tensors: every tensor of the layout that holds values, in any order, of any strides, on any device.
            Those of tied names may be among them and are passed over.
        layout: what they are.
        source: the files to write, as `files.Checkpoint.source` describes them. None: one model.safetensors, or
            shards of at most 5 GB with an index.
        extras: other files by relative name: each function writes the file's bytes into what it is given.
        overwrite: write into a directory that has files in it. Its .safetensors files and their indices go first, so
            that old and new weights are never side by side; files of other names stay.
        max_shard: bytes of tensors in a file: cut anew, instead of as in `source`, whose metadata is kept.

    Returns:
        The files written, weights first.

    Raises:
        BadCheckpoint: the directory is not empty, or is a repository; a tensor that the format cannot hold (all are
            listed), a file name that is not fit, a damaged `source`; before anything is written.
        LayoutMismatch: a tensor that is missing or not as the layout says.
        StoreFull, StoreDenied: the disk is full; the directory may not be written to.
    """
    directory = Path(directory)
    writers = dict(extras or {})
    planned = plan(str(directory), layout, source, max_shard)
    names = [*planned.names, *writers]
    check_names(directory, planned, names)
    heads = lay_out_shards(directory, planned)
    _check_directory(directory, overwrite)
    with reported(directory), _staged(directory) as staging:
        write_tensors(staging, tensors, layout, planned.shards, heads)
        if planned.index is not None:
            (staging / planned.index.name).write_text(planned.index_text(), encoding="utf-8")
        for name, write in writers.items():
            write_extra(staging, name, write)
        for name in names:
            flush(staging / name)
        _publish(staging, directory, names, planned)
    return [directory / name for name in names]


def check_names(directory: Path, planned: Plan, names: list[str]) -> None:
    """Refuse names that must not, or cannot, be written.

    Args:
        names: those of the plan, in its order, and then those of the other files.

    Raises:
        BadCheckpoint: says which.
    """
    for name in names:
        fault = file_name_fault(name)
        if fault:
            raise BadCheckpoint(str(directory), f"cannot write a file called {name[:200]!r}: {fault}")
    taken = set(names)
    for name in names[len(planned.names) :]:
        if name in planned.names or any(str(parent) in taken for parent in PurePosixPath(name).parents):
            raise BadCheckpoint(str(directory), f"cannot write {name!r}: another file is in its place")
        if "/" not in name and (is_tensor_file(name) or is_index(name)):
            raise BadCheckpoint(str(directory), f"cannot write {name!r}: it would be read as part of the weights")


def _check_directory(directory: Path, overwrite: bool) -> None:
    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        raise BadCheckpoint(str(directory), "is not a directory; checkpoints are written into one")
    with reported(directory):
        occupied = any(directory.iterdir())
        repository = (directory / _MARKER).exists()
    if repository:
        raise BadCheckpoint(str(directory), "is a repository; name a directory of its own for the checkpoint")
    if occupied and not overwrite:
        raise BadCheckpoint(str(directory), "is not empty; name an empty or new directory, or ask to overwrite it")


@contextlib.contextmanager
def reported(directory: Path) -> Iterator[None]:
    """Say in our own words what the file system refused. Raises StoreFull, StoreDenied, BadCheckpoint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(str(directory), "writing a checkpoint") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreDenied(str(directory), "writing a checkpoint", str(error.strerror)) from error
        raise BadCheckpoint(str(directory), f"cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _staged(directory: Path) -> Iterator[Path]:
    """A folder on the same file system, hidden, which is gone afterwards together with folders made for it."""
    made = [parent for parent in directory.absolute().parents if not parent.exists()]
    above = directory if directory.is_dir() else directory.parent
    staging = above / f".deltavc-{secrets.token_hex(8)}"
    try:
        staging.mkdir(parents=True)
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):  # not empty: the checkpoint is in it
                parent.rmdir()


def lay_out_shards(directory: Path, planned: Plan) -> list[Laid]:
    """Lay out each file of a plan. Raises BadCheckpoint for a header that no reader would take."""
    laid = [lay_out(shard.specs, shard.metadata) for shard in planned.shards]
    for shard, (head, _, _) in zip(planned.shards, laid, strict=True):
        if len(head) > MAX_HEADER:
            raise BadCheckpoint(
                str(directory), f"the names in {shard.name} take {len(head)} bytes; a header has at most {MAX_HEADER}"
            )
    return laid


def write_tensors(
    staging: Path, tensors: Iterable[tuple[str, Tensor]], layout: Layout, shards: Sequence[Shard], heads: Iterable[Laid]
) -> None:
    """Write files of a plan, all of them or some, into a folder where they are not yet.

    Args:
        tensors: every tensor that holds values in these files, by its stored name, in any order. Those of tied names
            may be among them and are passed over.
        layout: what they are, and perhaps others that these files do not hold.
        shards, heads: the files, and what `lay_out_shards` gave for each.

    Raises:
        LayoutMismatch: a tensor that is missing, came twice, or is not as the layout says.
        OSError: see `reported`.
    """
    wanted: dict[str, list[str]] = {}
    for spec in (spec for shard in shards for spec in shard.specs):
        wanted.setdefault(spec.tie or spec.name, []).append(spec.name)
    with contextlib.ExitStack() as files:
        places: dict[str, tuple[FileIO, int]] = {}
        for shard, (head, offsets, size) in zip(shards, heads, strict=True):
            out = files.enter_context((staging / shard.name).open("xb", buffering=0))
            out.truncate(size)
            _write_at(out, 0, memoryview(head))
            places.update((name, (out, offset)) for name, offset in offsets.items())
        for name, tensor in tensors:
            place = layout.place.get(name)
            if place is None:
                raise LayoutMismatch(name, "is not in the layout")
            spec = layout.tensors[place]
            if spec.tie is not None:
                continue
            if name not in wanted:
                raise LayoutMismatch(name, "came twice")
            if (dtype_name(tensor.dtype, name), tuple(tensor.shape)) != (spec.dtype, spec.shape):
                raise LayoutMismatch(
                    name, f"is {tensor.dtype} {tuple(tensor.shape)}, the layout says {spec.dtype} {spec.shape}"
                )
            targets = [places[each] for each in wanted.pop(name)]
            done = 0
            for piece in _pieces(lanes(tensor)):
                for out, offset in targets:
                    _write_at(out, offset + done, piece)
                done += piece.nbytes
    if wanted:
        raise LayoutMismatch(min(wanted), "is missing")


def write_extra(staging: Path, name: str, write: Callable[[BinaryIO], object]) -> None:
    """Write another file of a checkpoint into the folder, with the folders that its name has. Raises OSError."""
    path = staging / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as out:
        write(out)


def _pieces(bits: Tensor) -> Iterator[memoryview]:
    """The bytes of lanes in row-major order, without a copy where they lie so in memory."""
    nbytes = bits.numel() * bits.element_size()
    if nbytes == 0:
        return
    if (bits.is_contiguous() and bits.device.type == "cpu") or nbytes <= GATHERED_BYTES:
        yield bits.cpu().contiguous().reshape(-1).numpy().data.cast("B")
        return
    rows = len(bits) * GATHERED_BYTES // nbytes
    for part in torch.split(bits, rows) if rows else bits.unbind():
        yield from _pieces(part)


def _write_at(out: FileIO, offset: int, data: memoryview) -> None:
    while data.nbytes:  # one call writes at most 2 GiB
        written = os.pwrite(out.fileno(), data, offset)
        data, offset = data[written:], offset + written


def _publish(staging: Path, directory: Path, names: list[str], planned: Plan) -> None:
    """Move what was staged into place.

    A new directory appears by one rename. In one that exists, old weights go first and the index comes before the
    files it names, so that an interruption leaves a checkpoint that is visibly incomplete, and never a mixture.
    """
    for walked, _, _ in os.walk(staging):
        flush(Path(walked))
    if not directory.is_dir():
        staging.rename(directory)
        flush(directory.parent)
        return
    for name in names:
        for parent in list(PurePosixPath(name).parents)[:-1]:
            if (directory / parent).is_symlink():
                raise BadCheckpoint(str(directory), f"cannot write {name!r}: {parent} is a link")
    for entry in list(directory.iterdir()):
        if is_tensor_file(entry.name) or is_index(entry.name):
            entry.unlink()
    for name in sorted(names, key=lambda name: planned.index is None or name != planned.index.name):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).replace(directory / name)
    for folder in {(directory / name).parent for name in names}:
        flush(folder)


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
