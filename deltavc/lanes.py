"""Lanes: tensors as the unsigned integers their elements are stored in.

Every comparison and every difference is taken between lanes, never between floats, so -0.0, NaN payloads
and rounding survive. A lane view shares storage with its tensor, on whatever device it is. Torch's signed
types stand in for the unsigned ones, whose arithmetic torch lacks; wrapping makes them the same.

    bits = lanes(weight)      # bf16 (4096, 4096) -> int16 (4096, 4096), same memory
"""

from __future__ import annotations

import torch
from torch import Tensor

from deltavc.errors import UnsupportedDtype
from deltavc.layout import LANE_BYTES

LANE_DTYPES: dict[int, torch.dtype] = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The torch dtype that stands for lanes of 1, 2, 4 and 8 bytes."""

_TORCH: dict[str, torch.dtype] = {name: getattr(torch, name) for name in LANE_BYTES}
_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in _TORCH.items()}


def dtype_name(dtype: torch.dtype, tensor: str | None = None) -> str:
    """The layout's name of a torch dtype: "bfloat16".

    Raises:
        UnsupportedDtype: the dtype has no lanes; `tensor` says whose it is.
    """
    try:
        return _NAMES[dtype]
    except KeyError:
        raise UnsupportedDtype(str(dtype).removeprefix("torch."), tensor) from None


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a layout's name."""
    return _TORCH[name]


def lanes(tensor: Tensor) -> Tensor:
    """View a tensor as lanes.

    Args:
        tensor: any supported dtype, any strides, any device. Lazy conjugates and negatives are resolved,
            which copies.

    Returns:
        int8, int16, int32 or int64 of the tensor's lane shape (complex128 gains a trailing 2), sharing
        its storage.

    Raises:
        UnsupportedDtype: the dtype has no lanes.
    """
    width = LANE_BYTES[dtype_name(tensor.dtype)]
    bits = tensor.detach().resolve_conj().resolve_neg()
    if bits.dtype is torch.complex128:
        bits = torch.view_as_real(bits)
    return bits.view(LANE_DTYPES[width])


def from_lanes(bits: Tensor, dtype: str) -> Tensor:
    """View lanes as the tensor they are: the inverse of `lanes`."""
    if dtype == "complex128":
        return torch.view_as_complex(bits.view(torch.float64))
    return bits.view(_TORCH[dtype])
