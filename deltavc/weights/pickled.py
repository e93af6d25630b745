"""One .pt file, read as data: torch.load with weights_only=True, and nothing else, ever.

A pickle is a program. The weights-only reader knows tensors and plain containers and refuses the rest, so
nothing that a file names is executed.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deltavc.errors import BadCheckpoint

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts keep the weights beside optimizer and step."""


def load_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .pt file on the CPU, mapped from it where its format allows that.

    The file holds either a mapping of names to tensors, or one under a key of WRAPPERS beside which there is no other
    mapping of tensors.

    Raises:
        BadCheckpoint: it cannot be read, holds more than plain data, or has another structure.
    """
    try:
        # Only the zip container, which is what torch.save has written since 1.6, can be mapped.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(
            str(path), "is not a file of plain tensors; it was refused, because pickles are never executed"
        ) from error
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can make its reader fail in any way
        raise BadCheckpoint(str(path), f"is damaged: {type(error).__name__}: {str(error)[:200]}") from error
    return _tensors(path, content)


def _tensors(path: Path, content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise BadCheckpoint(str(path), f"holds a {type(content).__name__}, not a mapping of names to tensors")
    if not _is_flat(content):
        inner = [key for key, value in content.items() if isinstance(value, Mapping) and _is_flat(value)]
        if len(inner) > 1:
            raise BadCheckpoint(
                str(path), f"holds several mappings of tensors ({_list(inner)}); save one of them alone"
            )
        if not inner or inner[0] not in WRAPPERS:
            odd = next((key for key, value in content.items() if not isinstance(value, Tensor)), None)
            reason = "is empty" if odd is None else f"has a {type(content[odd]).__name__} under {odd!r}, not a tensor"
            raise BadCheckpoint(
                str(path),
                f"{reason}; expected names to tensors, alone or under {', '.join(map(repr, WRAPPERS))}",
            )
        content = content[inner[0]]
    for name in content:
        if not isinstance(name, str):
            raise BadCheckpoint(str(path), f"has a tensor under {name!r}, which is not a string")
    return dict(content)


def _is_flat(content: Mapping[Any, Any]) -> bool:
    return len(content) > 0 and all(isinstance(value, Tensor) for value in content.values())


def _list(keys: list[Any]) -> str:
    return ", ".join(repr(key) for key in keys[:5])
