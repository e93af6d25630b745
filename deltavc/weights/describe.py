"""From tensors to the layout that describes them: what can be committed, and what is tied.

Two names are tied when they are one tensor: the same elements of the same storage, seen the same way.
The first name in sorted order holds the values and the others point to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from deltavc.errors import BadState
from deltavc.lanes import dtype_name, torch_dtype
from deltavc.layout import Layout, TensorSpec

CASTABLE = frozenset({"bfloat16", "float16", "float32", "float64"})
"""What `dtype=` casts from and to. Narrower formats carry scales that a cast would ignore."""


def describe(tensors: Mapping[str, Any], dtype: str | None = None) -> Layout:
    """Return the layout of these tensors.

    Args:
        tensors: name to tensor; what is not a plain tensor is refused.
        dtype: one of CASTABLE, which the tensors of such dtypes will be cast to, or None.

    Raises:
        BadState: no tensors; a name that is no string or cannot be stored; something that is not a dense, plain tensor
            with values.
        UnsupportedDtype: a dtype without lanes.
    """
    for name in tensors:
        if not isinstance(name, str):
            raise BadState(f"{name!r} is not a name: tensor names are strings")
    first: dict[tuple[Any, ...], str] = {}
    specs = []
    for name in sorted(tensors):
        tensor = check_tensor(name, tensors[name])
        stored = dtype_name(tensor.dtype, name)
        if dtype is not None and stored in CASTABLE:
            stored = dtype
        owner = name if tensor.numel() == 0 else first.setdefault(_identity(tensor), name)
        specs.append(TensorSpec(name, stored, tuple(tensor.shape), None if owner == name else owner))
    if not specs:
        raise BadState("there are no tensors in this state")
    return Layout.of(specs)


def check_tensor(name: str, value: Any) -> Tensor:
    """Return `value` if it is a dense tensor with values in its own storage.

    Raises:
        BadState: it is not; says which and why.
    """
    if not isinstance(value, Tensor):
        raise BadState(f"is not a tensor but a {type(value).__name__}", name)
    if type(value).__name__ == "DTensor":
        raise BadState("is a DTensor, of which this process holds a part: commit with group=, on all ranks", name)
    if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        # A subclass that intercepts operations keeps its values elsewhere, if it has any.
        raise BadState(f"is a {type(value).__name__}, whose values are not in a storage of its own", name)
    if is_lazy(value):
        raise BadState("is a lazy parameter that has no shape yet; run the module once", name)
    if value.is_meta:
        raise BadState("is on the meta device: it has no values", name)
    if value.is_nested or value.layout is not torch.strided:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise BadState(f"is not dense but {kind}; convert it first", name)
    if value.is_quantized:
        raise BadState("is quantised; commit its int_repr() and scales as tensors of their own", name)
    return value


def cast_dtype(dtype: torch.dtype | str | None) -> str | None:
    """The layout's name of what `dtype=` was given.

    Raises:
        BadState: it is none of CASTABLE.
    """
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in CASTABLE:
        raise BadState(f"dtype= can be {', '.join(sorted(CASTABLE))}, not {name}")
    return name


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor in the dtype its layout gives it; itself if that is what it has."""
    return tensor.detach().to(torch_dtype(dtype))


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    # A lazy conjugate or negative shares storage with the tensor it came from, and differs in values.
    return (
        tensor.device,
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )
