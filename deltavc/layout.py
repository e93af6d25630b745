"""Layouts: what tensors a state has, without their values.

A layout lists tensors in canonical order (by name), each with dtype, shape and, where several names share
one tensor, the first of those names. It is content-named, so a run of a million versions has one layout.

    {"tensors": [{"dtype": "bfloat16", "name": "embed", "shape": [32000, 4096]},
                 {"dtype": "bfloat16", "name": "lm_head", "shape": [32000, 4096], "tie": "embed"}]}

This module knows nothing of torch; `lanes` turns tensors into lanes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deltavc import canonical
from deltavc.errors import BadPayload, BadState, UnsupportedDtype

LANE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float4_e2m1fn_x2": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 8,
}
"""Bytes of one lane for every supported dtype, named as torch names it."""

MAX_NAME = 1000
"""Characters in a tensor's name."""

MAX_DIMS = 64
MAX_NBYTES = 1 << 62
"""No tensor is larger than this, nor would be if it had no length of 0.

Sizes read from a store are checked against it before they are used."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a layout: `shape` counts elements as torch does, `tie` names the tensor it shares."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tie: str | None = None

    @property
    def lane_bytes(self) -> int:
        return LANE_BYTES[self.dtype]

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """The shape in lanes: complex128 has a trailing dimension of 2."""
        return (*self.shape, 2) if self.dtype == "complex128" else self.shape

    @property
    def num_lanes(self) -> int:
        return math.prod(self.lane_shape)

    @property
    def nbytes(self) -> int:
        return self.num_lanes * self.lane_bytes


@dataclass(frozen=True)
class Layout:
    """Tensors in canonical order. Two states with equal layouts differ in values only."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, tensors: Iterable[TensorSpec]) -> Layout:
        """Sort and check what a caller describes.

        Raises:
            BadState: a name twice, empty, too long or not writable as UTF-8; a tie to nothing or to another tie.
            UnsupportedDtype: a dtype without lanes.
        """
        layout = cls(tuple(sorted(tensors, key=lambda tensor: tensor.name)))
        layout._check()
        return layout

    @classmethod
    def parse(cls, body: bytes) -> Layout:
        """Read a stored layout.

        Raises:
            BadPayload: anything that `Layout.body` could not have written.
        """
        try:
            parsed = canonical.loads(body)
            layout = cls(tuple(_parse_tensor(item) for item in parsed["tensors"]))
            layout._check()
        except (BadState, UnsupportedDtype, KeyError, TypeError, ValueError) as error:
            raise BadPayload(f"not a layout: {error}") from error
        if layout.body != bytes(body):
            raise BadPayload("not a layout: it is not in canonical form")
        return layout

    @functools.cached_property
    def body(self) -> bytes:
        """The canonical JSON that is stored."""
        return canonical.dumps({"tensors": [_tensor_json(tensor) for tensor in self.tensors]}, "layout")

    @functools.cached_property
    def id(self) -> str:
        return canonical.content_id(self.body)

    @functools.cached_property
    def place(self) -> dict[str, int]:
        """Each name's place in the canonical order."""
        return {tensor.name: place for place, tensor in enumerate(self.tensors)}

    @functools.cached_property
    def stored(self) -> tuple[int, ...]:
        """Places of the tensors that hold values: all but those tied to another."""
        return tuple(place for place, tensor in enumerate(self.tensors) if tensor.tie is None)

    @functools.cached_property
    def stored_names(self) -> frozenset[str]:
        """Names of the tensors that hold values."""
        return frozenset(self.tensors[place].name for place in self.stored)

    @property
    def num_lanes(self) -> int:
        return sum(self.tensors[place].num_lanes for place in self.stored)

    @property
    def nbytes(self) -> int:
        return sum(self.tensors[place].nbytes for place in self.stored)

    def _check(self) -> None:
        for before, tensor in zip((None, *self.tensors), self.tensors, strict=False):
            _check_tensor(tensor)
            if before is not None and before.name >= tensor.name:
                raise BadState("appears twice or out of order", tensor.name)
        for tensor in self.tensors:
            if tensor.tie is not None:
                target = self.tensors[self.place[tensor.tie]] if tensor.tie in self.place else None
                if target is None or target.tie is not None or target.name >= tensor.name:
                    raise BadState(
                        f"is tied to {tensor.tie!r}, which is not an earlier tensor with values", tensor.name
                    )
                if (target.dtype, target.shape) != (tensor.dtype, tensor.shape):
                    raise BadState(f"is tied to {tensor.tie!r}, which has another dtype or shape", tensor.name)


def _check_tensor(tensor: TensorSpec) -> None:
    if tensor.dtype not in LANE_BYTES:
        raise UnsupportedDtype(tensor.dtype, tensor.name)
    if not tensor.name or len(tensor.name) > MAX_NAME:
        raise BadState(f"has a name of {len(tensor.name)} characters; 1 to {MAX_NAME} are allowed", tensor.name[:40])
    try:
        tensor.name.encode()
    except UnicodeEncodeError as error:
        raise BadState("has a name that cannot be written as UTF-8", repr(tensor.name)) from error
    if len(tensor.shape) > MAX_DIMS or any(length < 0 for length in tensor.shape):
        raise BadState(f"has an impossible shape {tensor.shape}", tensor.name)
    # Also as if no length were 0: strides of an empty tensor overflow all the same.
    full = math.prod(length for length in tensor.lane_shape if length) * tensor.lane_bytes
    if full > MAX_NBYTES or any(length > canonical.MAX_INTEGER for length in tensor.shape):
        raise BadState(f"is too large: shape {tensor.shape}", tensor.name)


def _tensor_json(tensor: TensorSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    if tensor.tie is not None:
        entry["tie"] = tensor.tie
    return entry


def _parse_tensor(item: dict[str, Any]) -> TensorSpec:
    tie = item.get("tie")
    if not isinstance(item["name"], str) or not isinstance(item["dtype"], str) or not isinstance(tie, str | None):
        raise ValueError("a name, dtype or tie that is not a string")
    shape = item["shape"]
    if not isinstance(shape, list) or any(type(length) is not int for length in shape):
        raise ValueError("a shape that is not a list of integers")
    return TensorSpec(item["name"], item["dtype"], tuple(shape), tie)
