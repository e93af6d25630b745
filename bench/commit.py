"""How long does a commit hold up a trainer, beside reading the same bytes once?

512 MiB of bf16 in 16 tensors, 0.5 % of the elements changed by one ULP, seed fixed. Interleaved in one run,
medians: `torch.bitwise_xor(a, b, out=c)` over the same lanes (the limit: every byte read and written once),
diff plus encode, and a whole commit through a writer to memory://, which also decodes what it encoded and
proves by a fingerprint of the whole state that what it commits is the state.

    python bench/commit.py [--mib 512] [--density 0.005] [--rounds 9]
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import deltavc
from deltavc import kernels, packing
from deltavc.change import Box
from deltavc.delta import codecs
from deltavc.delta.frames import frame_boxes
from deltavc.kernels import pool
from deltavc.lanes import lanes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--density", type=float, default=0.005)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(7)
    per_tensor = (given.mib << 20) // 2 // 16
    state = {f"layer.{n:02d}": _weights(per_tensor, generator) for n in range(16)}
    other = {name: tensor.clone() for name, tensor in state.items()}
    out = {name: torch.empty_like(lanes(tensor)) for name, tensor in state.items()}
    positions = torch.randperm(per_tensor, generator=generator)[: int(per_tensor * given.density)]

    repo = deltavc.init("memory://bench-commit")
    seconds: dict[str, list[float]] = {"xor": [], "diff+encode": [], "commit": []}
    read = _Reading(state)
    with repo.writer("main") as writer:
        writer.commit(state)
        for number in range(given.rounds + 2):
            _step(state, positions, number)
            began = time.perf_counter()
            for name, tensor in state.items():
                torch.bitwise_xor(lanes(tensor), lanes(other[name]), out=out[name])
            xor = time.perf_counter() - began
            began = time.perf_counter()
            read.run(state)
            encode = time.perf_counter() - began
            began = time.perf_counter()
            version = writer.commit(state, step=number)
            commit = time.perf_counter() - began
            if number >= 2:  # the first rounds compile and warm up
                for name, value in (("xor", xor), ("diff+encode", encode), ("commit", commit)):
                    seconds[name].append(value)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{given.mib} MiB of bf16, {given.density:.2%} changed, {pool.size()} threads, {given.rounds} rounds")
    for name, value in medians.items():
        print(
            f"{name:12} {value * 1e3:8.1f} ms   {(given.mib << 20) / value / 1e9:6.1f} GB/s   "
            f"{medians['xor'] / value:5.2f} of xor"
        )
    print("stored", version.stored_bytes, {name: round(value * 1e3, 1) for name, value in version.timings.items()})


class _Reading:
    """Diff and encode alone, frame by frame on the pool, against a copy that advances."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._held = {name: lanes(tensor).clone() for name, tensor in state.items()}

    def run(self, state: dict[str, torch.Tensor]) -> None:
        pool.run([task for name, tensor in state.items() for task in self._tasks(name, lanes(tensor))])

    def _tasks(self, name: str, new: torch.Tensor) -> Iterator[Callable[[], int]]:
        for box in frame_boxes(tuple(new.shape), new.element_size(), packing.FRAME_BYTES):
            yield functools.partial(_encode, self._held[name][box.index], new[box.index], box, tuple(new.shape))


def _encode(old: torch.Tensor, new: torch.Tensor, box: Box, shape: tuple[int, ...]) -> int:
    change, _ = kernels.diff(old, new, "add", box, shape, advance=True)
    return len(codecs.codec(codecs.choose(change, box.num_lanes)).encode(change, box.num_lanes))


def _weights(count: int, generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(count, generator=generator) * 0.02).bfloat16()


def _step(state: dict[str, torch.Tensor], positions: torch.Tensor, number: int) -> None:
    """Move a share of the elements by one ULP; other ones each time."""
    for tensor in state.values():
        bits = lanes(tensor)
        moved = (positions + number * 977) % bits.numel()
        bits[moved] += 1 if number % 2 else -1


if __name__ == "__main__":
    main()
