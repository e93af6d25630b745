"""One .safetensors file: its dtypes, its tensors without loading them, and its header.

A file is 8 bytes of header length (little-endian), the header (JSON, padded with spaces), then the
tensors' bytes without gaps. Reading goes through the library, which checks headers and maps the file, so a
tensor that is loaded shares the file's pages. Writing lays the header by hand, because the library wants
all tensors at once and we stream them; the bytes are the same.

Source: https://github.com/huggingface/safetensors, the format section of its README.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from deltavc.errors import BadCheckpoint, UnsupportedDtype
from deltavc.layout import TensorSpec

CODES: dict[str, str] = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""The format's dtypes that have lanes, in the library's order, which is also the order within a file."""

MAX_HEADER = 100_000_000
"""Bytes of a header; the library refuses to read a larger one."""

METADATA = "__metadata__"
"""The header's own key, which no tensor can be called."""

_CODE = {dtype: code for code, dtype in CODES.items()}
_RANK = {dtype: rank for rank, dtype in enumerate(CODES.values())}


class TensorFile:
    """An open .safetensors file.

    metadata: the header's text metadata, or None. specs: its tensors, in name order.

    Raises:
        BadCheckpoint: the file cannot be read or is damaged.
        UnsupportedDtype: a tensor of a dtype that has no lanes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = cast(Any, safe_open(path, framework="pt", device="cpu"))
            self.metadata: dict[str, str] | None = self._handle.metadata()
            self.specs = tuple(self._spec(name) for name in sorted(self._handle.keys()))
        except SafetensorError as error:
            raise BadCheckpoint(str(path), f"not a safetensors file, or a damaged one: {error}") from error
        except OSError as error:
            raise BadCheckpoint(str(path), f"cannot be read: {error.strerror or error}") from error

    def load(self, name: str) -> Tensor:
        """The tensor on the CPU, mapped from the file and not read until it is used."""
        try:
            tensor: Tensor = self._handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise BadCheckpoint(str(self.path), f"tensor {name!r} cannot be read: {error}") from error
        return tensor

    def _spec(self, name: str) -> TensorSpec:
        view = self._handle.get_slice(name)
        code, shape = view.get_dtype(), tuple(view.get_shape())
        if code not in CODES:
            raise UnsupportedDtype(code, name)
        if code == "F4":  # the format counts 4-bit elements, torch counts pairs of them
            if shape[-1] % 2:
                raise BadCheckpoint(
                    str(self.path), f"tensor {name!r} has rows of 4-bit elements that end within a byte"
                )
            shape = (*shape[:-1], shape[-1] // 2)
        return TensorSpec(name, CODES[code], shape)


def refusal(spec: TensorSpec) -> str | None:
    """Why a .safetensors file cannot hold this tensor, or None if it can."""
    if spec.dtype not in _CODE:
        return f"the format has no {spec.dtype}"
    if spec.dtype == "float4_e2m1fn_x2" and not spec.shape:
        return "the format has no 0-dim float4_e2m1fn_x2"
    if spec.name == METADATA:
        return "the format keeps this name for itself"
    return None


def lay_out(specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None) -> tuple[bytes, dict[str, int], int]:
    """Lay out a file as the library would: widest dtypes first, then by name.

    Args:
        specs: tensors that `refusal` has nothing against.
        metadata: text to keep in the header.

    Returns:
        The bytes that come first, each tensor's offset in the file, and the file's size in bytes.
    """
    ordered = sorted(specs, key=lambda spec: (-_RANK[spec.dtype], spec.name))
    header: dict[str, object] = {} if metadata is None else {METADATA: dict(metadata)}
    starts: dict[str, int] = {}
    end = 0
    for spec in ordered:
        shape = list(spec.shape)
        if spec.dtype == "float4_e2m1fn_x2":
            shape[-1] *= 2
        starts[spec.name] = end
        end += spec.nbytes
        header[spec.name] = {
            "dtype": _CODE[spec.dtype],
            "shape": shape,
            "data_offsets": [starts[spec.name], end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return head, {name: len(head) + start for name, start in starts.items()}, len(head) + end
