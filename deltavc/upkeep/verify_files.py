"""Do these files, or live tensors, hold exactly that version? And if not, what differs.

files ── fingerprint of every tensor ──┐
                                       ├── equal, by name
version ── what the edges to it tell ──┘      proven by the version's own fingerprint; no weights are fetched
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from deltavc import reader, walk
from deltavc.access import Access
from deltavc.identify import state_fingerprints
from deltavc.layout import Layout
from deltavc.lineage.plan import plan
from deltavc.lineage.replan import replanning
from deltavc.weights.state import State, StateView, open_state


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor, or a file beside the weights, that is not as in the version."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Match:
    """A state compared with a version.

    num_tensors: names compared. num_files: other files compared; what the version keeps and the state lacks is none.
    """

    version: str
    num_tensors: int
    num_files: int
    tensors: tuple[Difference, ...]
    files: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether the state is exactly the version."""
        return not self.tensors and not self.files

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


def match(access: Access, state: State, version: str) -> Match:
    """Compare a state with a version. Ties that files forgot are no difference.

    Raises:
        BadState, UnsupportedDtype, BadCheckpoint: the state cannot be read.
        UnknownRef, NoPath; Corruption: the version's own records are damaged.
    """
    record = access.index.version(version).record
    objects = access.objects
    layout = objects.layout(record.layout, version)

    def told() -> dict[str, int]:
        way = plan(access.index, version, forward_only=True)
        return reader.proven_fingerprints(walk.legs(way, objects), record)

    expected = replanning(access.index, told)
    view = open_state(state)
    there = {name: path for name, path in view.extras.items() if name in record.files}
    other = [name for name, path in there.items() if _digest(path) != record.files[name].id[:64]]
    return Match(
        version=version,
        num_tensors=len(layout.tensors),
        num_files=len(there),
        tensors=tuple(_differences(view, layout, expected)),
        files=tuple(Difference(name, "has other bytes") for name in sorted(other)),
    )


def _differences(view: StateView, layout: Layout, expected: Mapping[str, int]) -> Iterator[Difference]:
    values = state_fingerprints(view)
    given = {tensor.name: tensor for tensor in view.layout.tensors}
    present = {tensor.tie or tensor.name for tensor in layout.tensors if tensor.name in given}
    for tensor in layout.tensors:
        found = given.get(tensor.name)
        if found is None:
            if tensor.name not in present and tensor.tie is None:
                yield Difference(tensor.name, "is missing")
        elif found.dtype != tensor.dtype:
            yield Difference(tensor.name, f"is {found.dtype}, and {tensor.dtype} in the version")
        elif found.shape != tensor.shape:
            yield Difference(tensor.name, f"has shape {list(found.shape)}, and {list(tensor.shape)} in the version")
        elif values[tensor.name] != expected[tensor.tie or tensor.name]:
            yield Difference(tensor.name, "has other values")
    for name in sorted(given.keys() - layout.place.keys()):
        yield Difference(name, "is not in the version")


def _digest(path: Any) -> str:
    hasher = blake3()
    hasher.update_mmap(path)
    return hasher.hexdigest()
