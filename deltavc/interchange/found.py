"""Checkpoints at paths, in the order of their steps.

    out/checkpoint-10  out/checkpoint-20  ...      a Trainer's output folder, named by itself
    run/step-100/.metadata, __0_0.distcp           a folder of DCP directories, or one of them
    epoch_*.pt  weights-*.safetensors              what a glob, of the shell or quoted, finds

A checkpoint's step is the number that its name gives after `step`, `iter`, `checkpoint`, `ckpt` or `epoch`, else a
number at its end.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from deltavc.errors import BadCheckpoint
from deltavc.held import Allocate
from deltavc.interchange.dcp import SUFFIX, is_dcp, open_dcp
from deltavc.interchange.trainer_log import STATE
from deltavc.weights.extras import find_extras, is_index, is_tensor_file
from deltavc.weights.files import Checkpoint, open_checkpoint
from deltavc.weights.pickled import SUFFIXES

FilesKept = Literal["none", "small", "all"]
"""Which other files of a checkpoint go with it: none; those of at most SMALL_BYTES that do not have the name of weights
in another format (as optimizer.pt has); all."""

SMALL_BYTES = 64 << 20

_TRAINERS = re.compile(r"checkpoint-([0-9]{1,15})")
_WORDS = [
    re.compile(rf"(?i:{word})[-_=.]?([0-9]{{1,15}})(?![0-9])")
    for word in ("step", "iter(?:ation)?", "checkpoint|ckpt", "epoch")
]
_AT_END = re.compile(r"(?<![0-9])[0-9]{1,15}$")
_GLOB = re.compile(r"[*?[]")
_WHOLE_PICKLE = "pytorch_model.bin"
_FSDP = "pytorch_model_fsdp_0"
"""Where Accelerate puts the weights of a sharded FSDP checkpoint, a DCP directory."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint on disk. path: as it is called. weights: the file or directory that holds them."""

    path: Path
    step: int
    weights: Path

    def open(self, allocate: Allocate, files: FilesKept) -> Checkpoint:
        """Open it without loading it, with the files to keep as its extras.

        Args:
            allocate: gives lanes for tensors that have to be put together.

        Raises:
            BadCheckpoint, UnsupportedDtype, BadState: it cannot be read, or not be committed.
        """
        checkpoint = open_dcp(self.weights, allocate) if is_dcp(self.weights) else open_checkpoint(self.weights)
        return replace(checkpoint, extras=self._extras(files))

    @property
    def logs(self) -> tuple[Path, Path]:
        """The folders in which a log of its step may lie, the better one first."""
        return (self.path if self.path.is_dir() else self.path.parent), self.path.parent

    @property
    def is_trainers(self) -> bool:
        """Whether it has the name that a Trainer gives."""
        return _TRAINERS.fullmatch(self.path.name) is not None

    @property
    def has_log(self) -> bool:
        """Whether a Trainer's log lies in it."""
        return (self.path / STATE).is_file()

    @property
    def nbytes(self) -> int:
        """Bytes of the files that hold the weights, and of those beside them."""
        files = self.weights.iterdir() if self.weights.is_dir() else ()
        return sum(file.stat().st_size for file in files if file.is_file())

    def _extras(self, files: FilesKept) -> Mapping[str, Path]:
        if files == "none" or not self.path.is_dir():
            return {}
        found = find_extras(self.path, other_formats=files == "all")
        kept = {name: path for name, path in found.items() if path != self.weights and not name.endswith(SUFFIX)}
        if files == "all":
            return kept
        return {name: path for name, path in kept.items() if path.stat().st_size <= SMALL_BYTES}


def find(paths: Iterable[str | Path]) -> list[Found]:
    """The checkpoints at these paths, by step.

    Args:
        paths: checkpoints, folders of them, or patterns of such paths.

    Raises:
        BadCheckpoint: a path without checkpoints, one whose name tells no step, two of one step.
    """
    found: dict[int, Found] = {}
    for given in paths:
        for path in _expanded(given):
            for one in _at(path):
                if (other := found.setdefault(one.step, one)).path != one.path:
                    raise BadCheckpoint(
                        str(one.path),
                        f"is step {one.step}, and so is {other.path}; a checkpoint in several files is named by "
                        "its directory",
                    )
    if not found:
        raise BadCheckpoint("", "no paths were given")
    return [found[step] for step in sorted(found)]


def check_files_kept(files: str) -> FilesKept:
    """Raises ValueError for what is no FilesKept."""
    for known in get_args(FilesKept):
        if files == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"files={files!r} is none of {', '.join(get_args(FilesKept))}")


def _expanded(given: str | Path) -> list[Path]:
    text = os.fspath(given)
    if _GLOB.search(text) and not os.path.lexists(text):
        if not (matches := sorted(glob.glob(text))):
            raise BadCheckpoint(text, "matches nothing")
        return [Path(match) for match in matches]
    return [Path(text)]


def _at(path: Path) -> Iterator[Found]:
    """The checkpoint that a path is, or those in it."""
    if not path.exists():
        raise BadCheckpoint(str(path), "there is no such file or directory")
    inside = _entries(path) if path.is_dir() else []
    if trainers := [entry for entry in inside if _TRAINERS.fullmatch(entry.name) and entry.is_dir()]:
        for entry in trainers:
            yield _named(entry, _weights_in(entry))
    elif not path.is_dir() or _holds_weights(path):
        yield _named(path, _weights_in(path) if path.is_dir() else path)
    else:
        held = [entry for entry in inside if (_holds_weights(entry) if entry.is_dir() else _is_weights(entry.name))]
        if not held:
            raise BadCheckpoint(str(path), "has no checkpoints in it")
        for entry in held:
            yield _named(entry, _weights_in(entry) if entry.is_dir() else entry)


def _named(path: Path, weights: Path) -> Found:
    name = Path(os.path.abspath(path)).name
    if (step := step_of(name)) is None:
        raise BadCheckpoint(str(path), "its name tells no step; commit it with `deltavc commit --step`")
    return Found(path, step, weights)


def step_of(name: str) -> int | None:
    """The step that a checkpoint's name tells: the number after a word for it, a better one first, or at the end."""
    for word in _WORDS:
        if (found := word.search(name)) is not None:
            return int(found[1])
    stem = name.rpartition(".")[0] if _is_weights(name) else name
    told = _AT_END.search(stem)
    return int(told[0]) if told else None


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise BadCheckpoint(str(directory), f"cannot be read: {error.strerror or error}") from error


def _holds_weights(directory: Path) -> bool:
    return (
        is_dcp(directory)
        or is_dcp(directory / _FSDP)
        or any(is_tensor_file(entry.name) or is_index(entry.name) for entry in _entries(directory))
        or (directory / _WHOLE_PICKLE).is_file()
    )


def _weights_in(directory: Path) -> Path:
    """What of a checkpoint's directory holds the weights: itself, as a rule."""
    if is_dcp(directory) or any(is_tensor_file(entry.name) for entry in _entries(directory)):
        return directory
    if is_dcp(directory / _FSDP):
        return directory / _FSDP
    return directory / _WHOLE_PICKLE if (directory / _WHOLE_PICKLE).is_file() else directory


def _is_weights(name: str) -> bool:
    return is_tensor_file(name) or name.lower().endswith(SUFFIXES)
