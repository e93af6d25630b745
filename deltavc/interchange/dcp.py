"""Directories of torch.distributed.checkpoint (DCP), opened as checkpoints: no process group, nothing executed.

What a trainer saved is a dict of dicts, which DCP flattens. The weights are what lies under one of the keys that
training scripts use for them (`model`, ...), or, where there is none, what lies flat at the top. Optimizer states,
which lie deeper, and everything that is no tensor are passed over.

    {"model": {...}, "optimizer": {...}, "step": 7}     the tensors under "model"
    {"embed.weight": ..., "optimizer": {...}}           embed.weight
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import torch

from deltavc.errors import BadCheckpoint
from deltavc.held import Allocate
from deltavc.interchange import dcp_metadata
from deltavc.interchange.dcp_metadata import METADATA, Chunk
from deltavc.lanes import dtype_name, from_lanes, lanes
from deltavc.layout import Layout, TensorSpec
from deltavc.weights.files import Checkpoint
from deltavc.weights.pickled import WRAPPERS

SUFFIX = ".distcp"


def is_dcp(directory: Path) -> bool:
    """Whether a directory is one that DCP wrote."""
    return (directory / METADATA).is_file()


def open_dcp(directory: Path, allocate: Allocate) -> Checkpoint:
    """Open a DCP directory. A tensor is put together from its chunks when it is asked for, one chunk at a time.

    Args:
        allocate: gives the lanes that a tensor is put together in.

    Raises:
        BadCheckpoint: it cannot be read, is not what DCP writes, or does not say which of its tensors are weights.
        UnsupportedDtype: a tensor of a dtype that has no lanes.
        BadState: a tensor whose name cannot be committed.
    """
    tensors = _weights(directory, dcp_metadata.read_metadata(directory))
    layout = Layout.of(TensorSpec(name, dtype_name(item.dtype, name), item.shape) for name, item in tensors.items())
    for name in {chunk.file for item in tensors.values() for chunk in item.chunks}:
        if not (directory / name).is_file() or (directory / name).is_symlink():
            raise BadCheckpoint(str(directory), f"names a file that is not there: {name}")

    def load(name: str) -> torch.Tensor:
        spec = layout.tensors[layout.place[name]]
        whole = from_lanes(allocate(spec), spec.dtype)
        for chunk in tensors[name].chunks:
            part = _load(directory, name, chunk)
            if part.dtype != whole.dtype or tuple(part.shape) != chunk.box.lengths:
                raise BadCheckpoint(str(directory / chunk.file), f"a chunk of {name!r} is not what {METADATA} says")
            lanes(whole[chunk.box.index]).copy_(lanes(part))
        return whole

    return Checkpoint(directory, layout, load)


def _weights(directory: Path, found: dict[str, dcp_metadata.Tensor]) -> dict[str, dcp_metadata.Tensor]:
    """The tensors that are weights, by the names they have as such."""
    tops = {item.path[0] for item in found.values() if len(item.path) > 1}
    wrapped = [key for key in WRAPPERS if key in tops]
    if len(wrapped) > 1:
        raise BadCheckpoint(str(directory), f"has tensors under {' and '.join(map(repr, wrapped))}; save one of them")
    if wrapped:
        chosen = {item.path[1:]: item for item in found.values() if len(item.path) > 1 and item.path[0] == wrapped[0]}
    else:
        chosen = {item.path: item for item in found.values() if len(item.path) == 1}
    if not chosen:
        raise BadCheckpoint(
            str(directory),
            f"has no tensors at the top or under {', '.join(map(repr, WRAPPERS))}, only under "
            f"{', '.join(map(repr, sorted(tops)[:5])) or 'nothing'}",
        )
    named = {".".join(path): item for path, item in chosen.items()}
    if len(named) != len(chosen):
        raise BadCheckpoint(str(directory), "has two tensors of one name")
    return named


def _load(directory: Path, name: str, chunk: Chunk) -> torch.Tensor:
    path = directory / chunk.file
    try:
        with path.open("rb") as file:
            file.seek(chunk.offset)
            body = file.read(min(chunk.nbytes, path.stat().st_size))
        part = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(str(path), f"a chunk of {name!r} is not a tensor; it was refused") from error
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror or error}") from error
    except Exception as error:  # as damage has it
        raise BadCheckpoint(str(path), f"a chunk of {name!r} is damaged: {str(error)[:200]}") from error
    if not isinstance(part, torch.Tensor):
        raise BadCheckpoint(str(path), f"a chunk of {name!r} is a {type(part).__name__}")
    return part
