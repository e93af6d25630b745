"""Layers: which tensors belong together, told from their names.

    model.layers.3.mlp.up_proj.weight   ->  model.layers.3      up to the first number
    model.layers.3.mlp.experts.7.w1     ->  model.layers.3
    model.embed_tokens.weight           ->  model.embed_tokens  no number: the module it is in
    scale                               ->  scale               in no module

Frameworks number the blocks of a model in this way, whatever they call them, so no list of models is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Compared(Protocol):
    """What is summed up: one tensor of two versions. Its status is "same" if nothing differs; steps are in ULPs."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def num_elements(self) -> int: ...
    @property
    def changed_elements(self) -> int: ...
    @property
    def largest_step(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LayerDiff:
    """The tensors of one layer together, of which `num_changed` differ in something.

    largest_step: the largest of theirs, in ULPs of each one's own dtype.
    """

    name: str
    num_tensors: int
    num_changed: int
    num_elements: int
    changed_elements: int
    largest_step: int

    @property
    def density(self) -> float:
        """The share of its elements that changed."""
        return self.changed_elements / self.num_elements if self.num_elements else 0.0

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "name": self.name,
            "num_tensors": self.num_tensors,
            "num_changed": self.num_changed,
            "num_elements": self.num_elements,
            "changed_elements": self.changed_elements,
            "density": self.density,
            "largest_step": self.largest_step,
        }


def layer_of(tensor: str) -> str:
    """The name of the layer that a tensor of this name belongs to."""
    parts = tensor.split(".")
    for place, part in enumerate(parts):
        if _is_number(part):
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-1]) or tensor


def layer_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort names of layers by: numbers as numbers, so that layer 10 comes after layer 9."""
    return tuple((0, len(part.lstrip("0")), part) if _is_number(part) else (1, 0, part) for part in name.split("."))


def by_layer(tensors: Iterable[Compared]) -> tuple[LayerDiff, ...]:
    """Tensors that were compared, summed up by layer, in the order of layers."""
    return tuple(
        LayerDiff(
            layer,
            len(found),
            sum(tensor.status != "same" for tensor in found),
            sum(tensor.num_elements for tensor in found),
            sum(tensor.changed_elements for tensor in found),
            max(tensor.largest_step for tensor in found),
        )
        for layer, found in grouped(tensors, lambda tensor: tensor.name).items()
    )


def grouped(items: Iterable[_T], name: Callable[[_T], str]) -> dict[str, list[_T]]:
    """Items by the layer that the tensor they name belongs to, in the order of layers."""
    found: dict[str, list[_T]] = {}
    for item in items:
        found.setdefault(layer_of(name(item)), []).append(item)
    return {layer: found[layer] for layer in sorted(found, key=layer_order)}


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit()
