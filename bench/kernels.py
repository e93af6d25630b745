"""How fast are the CPU kernels beside torch's XOR of the same lanes?

Input: 512 MiB of random bf16 bits, and a copy in which a share of the lanes has another value (seed 0).
Every round runs each kernel once, and `torch.bitwise_xor(a, b, out=c)` and a plain copy beside them, so that
whatever else the machine does hits all alike. Printed are medians of the rounds, and speed as a ratio to XOR.

    python bench/kernels.py [--mib 512] [--rounds 9]
"""

import argparse
import itertools
import os
import platform
import statistics
import time

import torch

from deltavc import kernels
from deltavc.change import Box, Dense, Sparse

DENSITIES = (0.0005, 0.005, 0.03, 0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="MiB of weights")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()

    num_lanes = options.mib << 19
    place = Box.whole((num_lanes,)), (num_lanes,)
    generator = torch.Generator().manual_seed(0)
    old = torch.randint(-(2**15), 2**15, (num_lanes,), dtype=torch.int16, generator=generator)
    new, held, swapped, out = old.clone(), old.clone(), old.clone(), torch.empty_like(old)
    print(f"{options.mib} MiB of bf16, medians of {options.rounds} rounds, {platform.machine()}")
    print(f"{len(os.sched_getaffinity(0))} CPUs, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    print(f"{'density':>8} {'kernel':<24} {'ms':>8} {'GB/s':>7} {'of XOR':>7}")

    for density in DENSITIES:
        places = torch.randint(num_lanes, (int(num_lanes * density),), generator=generator)
        new.copy_(old)
        new[places] += 1
        change, _ = kernels.diff(old, new, "add", *place)
        places = torch.randint(num_lanes, (int(num_lanes * density),), generator=generator)
        out.copy_(new)
        out[places] += 1
        next_change, _ = kernels.diff(new, out, "add", *place)

        def advance():
            kernels.diff(held, new, "add", *place, advance=True)

        # A change staged for a live update; every other round swaps it back.
        at = change.positions if isinstance(change, Sparse) else 0
        listed = slice(None) if isinstance(change, Dense) else at
        there = [kernels.Segment(swapped, at, old[listed], new[listed])]
        back = [kernels.Segment(swapped, at, there[0].new, there[0].old)]
        swapped.copy_(old)
        tables = itertools.cycle([kernels.SwapTable(there), kernels.SwapTable(back)])

        def swap(tables=tables):
            assert next(tables).swap() == [0]

        def apply(change=change):
            kernels.apply(held, change, *place, sign=-1)  # what `advance` did, undone for the next round

        runs = {
            "torch.bitwise_xor": lambda: torch.bitwise_xor(old, new, out=out),
            "copy": lambda: out.copy_(new),
            "diff": lambda: kernels.diff(old, new, "add", *place),
            "diff, advance": advance,
            "apply": apply,
            "compose": lambda first=change, second=next_change: kernels.compose(first, second, num_lanes),
            "swap": swap,
            "fingerprint": lambda: kernels.fingerprint(new, *place),
        }
        seconds = measure(runs, options.rounds)
        for name, median in seconds.items():
            speed = num_lanes * 2 / median / 1e9
            ratio = seconds["torch.bitwise_xor"] / median
            print(f"{density:8.2%} {name:<24} {median * 1e3:8.1f} {speed:7.1f} {ratio:7.2f}", flush=True)


def measure(runs, rounds):
    """Median seconds of each, interleaved; one round before them compiles and warms up."""
    seconds = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
