"""Tensors and files that tests of model files share."""

import json
import struct

import torch

from deltavc.lanes import from_lanes, lanes, torch_dtype
from deltavc.layout import LANE_BYTES

IN_SAFETENSORS = sorted(set(LANE_BYTES) - {"complex128"})


def every_bit_pattern(dtype, seed=0, rows=8):
    """A (rows, 64) tensor of random bits: NaN payloads, -0.0 and denormals among them."""
    torch.manual_seed(seed)
    if dtype == "bool":
        return torch.randint(0, 2, (rows, 64), dtype=torch.bool)
    width = LANE_BYTES[dtype]
    raw = torch.randint(-128, 128, (rows, 64 * width * (2 if dtype == "complex128" else 1)), dtype=torch.int8)
    if dtype in ("bfloat16", "float16", "float32", "float64"):
        odd = torch.tensor([float("nan"), -0.0, float("-inf"), 5e-324], dtype=torch_dtype(dtype))
        raw[0, : 4 * width] = odd.view(torch.int8)
        raw[1, 0] = 1
        raw[1, :width] |= torch.tensor([float("nan")], dtype=torch_dtype(dtype)).view(torch.int8)
    return raw.view(torch_dtype(dtype))


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bool((lanes(one) == lanes(other)).all())


def zeros(dtype, shape):
    return (
        from_lanes(torch.zeros(shape, dtype=torch.int8), dtype)
        if "float4" in dtype
        else torch.zeros(shape, dtype=torch_dtype(dtype))
    )


def write_raw(path, header, data=b"", pad=8):
    """A .safetensors file by hand, well-formed or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def contents(folder):
    """Every file below a folder and its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
