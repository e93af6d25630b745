"""The other files of a checkpoint's directory: config, tokenizer, generation settings.

They travel with a version and come back on checkout, so a file's name is checked by one rule both when it
is read and when it is written: what a stranger's version calls its files must never reach outside a folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from deltavc.errors import BadCheckpoint

MAX_FILE_NAME = 1000
"""Characters of a file's name with its folders."""

_OTHER_WEIGHTS = (
    *(".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack"),
    *(f"{suffix}.index.json" for suffix in (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")),
)
_UNFIT = re.compile(r"[\x00-\x1f\x7f\\:]")


def is_tensor_file(name: str) -> bool:
    """Whether a file of this name is read as weights."""
    return name.lower().endswith(".safetensors")


def is_index(name: str) -> bool:
    """Whether a file of this name is read as the index of several files of weights."""
    return name.lower().endswith(".index.json") and not name.lower().endswith(_OTHER_WEIGHTS)


def is_other_format(name: str) -> bool:
    """Whether a file of this name may hold weights in a format that is not .safetensors."""
    return name.lower().endswith(_OTHER_WEIGHTS)


def file_name_fault(name: str) -> str | None:
    """Why a file kept with a version cannot have this name, or None if it can.

    A name is relative, its parts joined by slashes. None of them may be hidden: a version must not be able to
    place `.git/hooks/...` in a working folder.
    """
    if not name or len(name) > MAX_FILE_NAME:
        return f"it has {len(name)} characters; 1 to {MAX_FILE_NAME} are allowed"
    if _UNFIT.search(name):
        return "it contains a backslash, a colon or a control character"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it cannot be written as UTF-8"
    if any(len(part) > 255 for part in encoded.split(b"/")):
        return "a part of it is longer than 255 bytes"
    if any(not part for part in name.split("/")):
        return "it is absolute or has an empty part"
    if any(part.startswith(".") for part in name.split("/")):
        return "a part of it starts with a dot"
    return None


def find_extras(directory: Path, other_formats: bool = False) -> dict[str, Path]:
    """The files of a checkpoint's directory that are not weights: relative name, with slashes, to path.

    Hidden files and folders are left out, and so are weights, and, unless `other_formats`, whatever else has the name
    of weights in another format, as optimizer.pt has.

    Raises:
        BadCheckpoint: a link that leaves the directory or leads to a folder, a file that is no plain file, or a name
            that `file_name_fault` objects to.
    """
    bounds = _bounds(directory)
    found: dict[str, Path] = {}
    for folder, folders, names in os.walk(directory, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if Path(folder, name).is_symlink():
                raise BadCheckpoint(str(Path(folder, name)), "is a link to a folder; replace it by the folder itself")
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            at_top = Path(folder) == directory
            if name.startswith(".") or is_tensor_file(name) or (is_other_format(name) and not other_formats):
                continue
            if at_top and is_index(name):
                continue
            fault = file_name_fault(relative)
            if fault:
                raise BadCheckpoint(str(directory), f"cannot keep the file {relative!r}: {fault}")
            if path.is_symlink() and not path.resolve().is_relative_to(bounds):
                raise BadCheckpoint(str(path), "is a link that leaves the directory; replace it by the file itself")
            if not path.is_file():
                raise BadCheckpoint(str(path), "is not a plain file, or a link to nothing")
            found[relative] = path
    return dict(sorted(found.items()))


def _bounds(directory: Path) -> Path:
    """Where links may lead. In a Hugging Face cache every file is a link to `blobs`, two folders up."""
    directory = directory.resolve()
    cache = directory.parent.parent
    return cache if directory.parent.name == "snapshots" and (cache / "blobs").is_dir() else directory


def _unreadable(error: OSError) -> None:
    raise BadCheckpoint(str(error.filename), f"cannot be read: {error.strerror}") from error
