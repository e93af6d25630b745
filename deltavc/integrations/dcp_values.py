"""Values: what a distributed checkpoint holds beside tensors, and how it is nested, as files of a version.

    dcp/values.3     of rank 3: torch.save of {"optim.param_groups.0.lr": 0.001, ...}
    dcp/paths.json   {"format": 1, "paths": {"optim.param_groups.0.lr": ["optim", "param_groups", 0, "lr"], ...}}

Nothing that is read is executed. Values are taken only if torch.load(weights_only=True) takes them, when they are saved
and when they are loaded; dcp's own planner would unpickle what it is given without a check, so it is given what was
pickled here, of values that passed.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from typing import Any

import torch

from deltavc import canonical
from deltavc.errors import BadPayload, BadState, CorruptObject

FOLDER = "dcp/"
"""What the names of these files begin with."""

PATHS = FOLDER + "paths.json"
FORMAT = 1

_VALUES = FOLDER + "values."
_GLOBAL = re.compile(r"GLOBAL (\S+)")
"""How torch says what it refuses."""

Paths = Mapping[str, tuple[str | int, ...]]
"""By flat name, the keys that lead to a value in the nested state."""


def values_file(rank: int) -> str:
    """The name of the file that a rank's values are in."""
    return f"{_VALUES}{rank}"


def is_values_file(name: str) -> bool:
    """Whether a version's file of this name holds values."""
    return name.startswith(_VALUES)


def value_of(name: str, body: io.BytesIO) -> Any:
    """A value, as the planner of a save wrote it.

    Raises:
        BadState: it could not be loaded again without running code that comes with it.
    """
    body.seek(0)
    try:
        return torch.load(body, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        named = _GLOBAL.search(str(error))
        found = str(error).partition("\n")[0] if named is None else f"it has a {named[1]} in it"
        raise BadState(
            f"is a value that torch.load(weights_only=True) refuses, so it could not be loaded again: {found}. Make it "
            "of tensors, numbers and texts, or allow it on all ranks with torch.serialization.add_safe_globals",
            name,
        ) from error


def body_of(value: Any) -> io.BytesIO:
    """A value as dcp's planners read it."""
    body = io.BytesIO()
    torch.save(value, body)
    body.seek(0)
    return body


def read_values(body: bytes, name: str, version: str) -> dict[str, Any]:
    """What is in a values file. Tensors among the values come to the CPU.

    Raises:
        CorruptObject: it is none, or holds what torch.load(weights_only=True) refuses.
    """
    try:
        values = torch.load(io.BytesIO(body), weights_only=True, map_location="cpu")
    except Exception as error:  # whatever bytes that torch did not write make it raise
        reason = f"torch.load(weights_only=True) refuses it: {str(error).partition(chr(10))[0]}"
        raise CorruptObject(name, reason, version) from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise CorruptObject(name, "it does not hold values by name", version)
    return values


def paths_body(paths: Any) -> bytes | None:
    """The nesting that a planner tells, as it is stored; None for one that tells it in a way of its own."""
    if not isinstance(paths, Mapping) or not all(_is_path(name, path) for name, path in paths.items()):
        return None
    return canonical.dumps({"format": FORMAT, "paths": {name: list(path) for name, path in paths.items()}}, PATHS)


def read_paths(body: bytes, version: str) -> Paths:
    """The nesting that `paths_body` stored. Raises CorruptObject."""
    try:
        found = canonical.loads(body)
    except BadPayload as error:
        raise CorruptObject(PATHS, error.reason, version) from error
    paths = found.get("paths") if isinstance(found, dict) and found.get("format") == FORMAT else None
    if not isinstance(paths, dict) or not all(_is_path(name, path) for name, path in paths.items()):
        raise CorruptObject(PATHS, "it does not say how names are nested, in a way that is known", version)
    return {name: tuple(path) for name, path in paths.items()}


def _is_path(name: object, path: object) -> bool:
    return isinstance(name, str) and isinstance(path, tuple | list) and all(type(key) in (str, int) for key in path)
