"""Inputs of the comparison: states as lanes before and after steps, and the entropy of what happened between them.

    demo        the training of `examples/demo.py`: a real model of 22.7 million weights under AdamW
    bf16        w ~ N(0, 0.02) in float32, plus N(0, s), both rounded; s such that the density comes out as asked
    fp8         the same, scaled as fp8 weights are: the largest magnitude to 448, the largest e4m3
    fp4         the same, as two e2m1 in a byte: 16 weights share a scale, that of before, with 6 for the largest
    bytes       random bytes, of which a share has another value, any other: the least regular that there is

Seeds are pinned.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
SIGMA = 0.02
LARGEST_E4M3 = 448.0
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Magnitudes of a 4-bit float, by code."""

SOLVED_ON = 1 << 20
"""Lanes on which s is solved for; the density of all of them then comes out a few percent off, as is reported."""

Lanes = dict[str, Tensor]
Round = Callable[[Tensor], Tensor]


def synthetic(kind: str, num_lanes: int, density: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lanes before and after one step, of shape (num_lanes,): int16 for bf16, int8 for the others."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "bytes":
        before = torch.randint(-128, 128, (num_lanes,), dtype=torch.int8, generator=generator)
        chosen = torch.rand(num_lanes, generator=generator) < density
        moved = torch.randint(1, 256, (num_lanes,), dtype=torch.int16, generator=generator)
        return before, before + (moved * chosen).to(torch.int8)
    num_weights = num_lanes * 2 if kind == "fp4" else num_lanes
    weights = torch.randn(num_weights, generator=generator) * SIGMA
    noise = torch.randn(num_weights, generator=generator)
    makers: dict[str, Callable[[Tensor], Round]] = {"bf16": _to_bf16, "fp8": _to_e4m3, "fp4": _to_e2m1}
    rounded = makers[kind](weights)
    return rounded(weights), rounded(weights.add_(noise, alpha=solve(weights, noise, density, rounded)))


def solve(weights: Tensor, noise: Tensor, density: float, rounded: Round) -> float:
    """The s for which adding s * noise changes this share of the rounded weights; by halving its logarithm."""
    weights, noise = weights[:SOLVED_ON], noise[:SOLVED_ON]
    before = rounded(weights)
    low, high = 1e-9 * SIGMA, SIGMA
    for _ in range(24):
        middle = math.sqrt(low * high)
        share = float((rounded(weights + middle * noise) != before).float().mean())
        low, high = (middle, high) if share < density else (low, middle)
    return high


def _to_bf16(before: Tensor) -> Round:
    return lambda weights: weights.bfloat16().view(torch.int16)


def _to_e4m3(before: Tensor) -> Round:
    scale = LARGEST_E4M3 / float(before.abs().max())
    # What goes beyond the largest value saturates, as in the casts of training frameworks; torch's own gives NaN.
    return lambda weights: (weights * scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn).view(torch.int8)


def _to_e2m1(before: Tensor) -> Round:
    scales = before.view(-1, 16).abs().amax(1, keepdim=True) / E2M1[-1]
    between = (E2M1[1:] + E2M1[:-1]) / 2

    def rounded(weights: Tensor) -> Tensor:
        scaled = weights.view(-1, 16) / scales[: len(weights) // 16]
        codes = torch.bucketize(scaled.abs(), between).to(torch.uint8) | ((scaled < 0).to(torch.uint8) << 3)
        pairs = codes.view(-1, 2)
        return (pairs[:, 0] | (pairs[:, 1] << 4)).view(torch.int8)

    return rounded


def bound_nbits(before: Tensor, after: Tensor) -> float:
    """Bits that nobody stays below who takes positions and values as independent draws.

    N lanes of which a share p changed: N * H2(p) for where, and the order-0 entropy of the wrapping differences for
    by how much.
    """
    difference = (after - before).reshape(-1)
    _, counts = torch.unique(difference[difference != 0], return_counts=True)
    changed, lanes = int(counts.sum()), difference.numel()
    where = _entropy_nbits(torch.tensor([changed, lanes - changed]))
    return where + _entropy_nbits(counts)


def _entropy_nbits(counts: Tensor) -> float:
    counts = counts[counts > 0].double()
    return float((counts * (counts.sum() / counts).log2()).sum())


def record_demo(folder: Path, steps: int) -> None:
    """Train the demo's model and write the bf16 lanes of every step, the first included, as files."""
    demo = _load_demo()
    trainer = demo.Trainer()
    write_step(folder, 0, demo.copied(trainer.live))
    for step, batch in enumerate(demo.docstring_pairs(batches=steps), start=1):
        trainer.step(batch, demo.LEARNING_RATE)
        write_step(folder, step, demo.copied(trainer.live))


def record_synthetic(folder: Path, steps: int, num_lanes: int) -> None:
    """The same for a made-up run, which takes no time: a matrix that moves, a vector that does not."""
    matrix = torch.randn(num_lanes, generator=torch.Generator().manual_seed(0)) * SIGMA
    for step in range(steps + 1):
        tensors = {"matrix": matrix.bfloat16().view(64, -1), "vector": torch.ones(64, dtype=torch.bfloat16)}
        write_step(folder, step, tensors)
        matrix += 3e-7 * torch.randn(num_lanes, generator=torch.Generator().manual_seed(1 + step))


def write_step(folder: Path, step: int, state: Lanes) -> None:
    """Keep a state of 2-byte tensors as its lanes."""
    bits = {name: tensor.contiguous().view(torch.int16) for name, tensor in state.items()}
    safetensors.torch.save_file(bits, folder / f"{step}.safetensors")


def read_steps(folder: Path, steps: int) -> Iterator[Lanes]:
    for step in range(steps + 1):
        yield safetensors.torch.load((folder / f"{step}.safetensors").read_bytes())


def _load_demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["demo"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
