"""How long is a live model kept from serving, and how much does staging slow it down?

bf16 weights in 16 tensors, 0.5 % of the elements changed by one ULP at places of their own, seed fixed. A replica
moves forwards and back between two versions. Interleaved in one run, medians: `torch.bitwise_xor(a, b, out=c)` over
the same weights (what systems that send dense differences do in their pause) and the replica's pause. Then a thread
serves (matrix products with the live weights, inside `reading`), alone and while versions are staged beside it.

    python bench/replica.py [--mib 48 512] [--density 0.005] [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import torch

import deltavc
from deltavc.kernels import pool
from deltavc.lanes import lanes

SERVING_SECONDS = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[48, 512])
    parser.add_argument("--density", type=float, default=0.005)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    print(f"{given.density:.2%} of bf16 changed, {pool.size()} threads, medians of {given.rounds} rounds")
    print(
        f"{'MiB':>5} {'stage ms':>9} {'pause ms':>9} {'XOR ms':>8} {'pause of XOR':>13} {'serving while staging':>22}"
    )
    for mib in given.mib:
        with deltavc.init(f"memory://bench-replica-{mib}") as repo:
            measure(repo, mib, given.density, given.rounds)


def measure(repo: deltavc.Repo, mib: int, density: float, rounds: int) -> None:
    """Commit two versions of so many MiB, and print a line of how moving between them goes."""
    generator = torch.Generator().manual_seed(7)
    state = {f"layer.{n:02d}": _weights(mib, generator) for n in range(16)}
    repo.commit(state)
    for tensor in state.values():
        bits = lanes(tensor).view(-1)
        bits[torch.randperm(bits.numel(), generator=generator)[: int(bits.numel() * density)]] += 1
    repo.commit(state)
    other = {name: lanes(tensor).clone() for name, tensor in state.items()}
    out = {name: torch.empty_like(bits) for name, bits in other.items()}
    stage, pause, xor = [], [], []
    with repo.replica(state, at="main") as replica:
        for number in range(rounds + 1):
            began = time.perf_counter()
            replica.stage("main" if number % 2 else "main~1").wait()
            staged = time.perf_counter() - began
            began = time.perf_counter()
            for name, tensor in state.items():
                torch.bitwise_xor(lanes(tensor), other[name], out=out[name])
            xored = time.perf_counter() - began
            applied = replica.apply()
            if number:  # the first round compiles and warms up
                stage.append(staged)
                xor.append(xored)
                pause.append(applied.pause_seconds)
    with repo.replica(state, threads=1) as replica:
        replica.move("main")
        kept = _serving(replica, state)
    whole, short, dense = (statistics.median(times) * 1e3 for times in (stage, pause, xor))
    print(f"{mib:5} {whole:9.1f} {short:9.2f} {dense:8.2f} {short / dense:13.2f} {kept:22.2f}", flush=True)


def _serving(replica: deltavc.Replica, state: dict[str, torch.Tensor]) -> float:
    """The rate at which a thread serves while versions are staged, as a share of its rate alone; in turns."""
    stop = threading.Event()
    served = 0

    def serve() -> None:
        nonlocal served
        batch = torch.randn(8, next(iter(state.values())).shape[1]).bfloat16()
        while not stop.is_set():
            for weight in state.values():
                with replica.reading():
                    torch.nn.functional.linear(batch, weight)
                served += 1

    here, other = replica.version, "main~1"
    thread = threading.Thread(target=serve)
    thread.start()
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for staging in (False, True):
            began, before = time.perf_counter(), served
            while (seconds := time.perf_counter() - began) < SERVING_SECONDS / 3:
                if staging:
                    replica.stage(other).wait()
                    replica.stage(here).wait()  # so that the next one has something to do
                else:
                    time.sleep(0.05)
            rates[staging].append((served - before) / seconds)
    stop.set()
    thread.join()
    return statistics.median(rates[True]) / statistics.median(rates[False])


def _weights(mib: int, generator: torch.Generator) -> torch.Tensor:
    rows = (mib << 20) // 2 // 16 // 1024
    return (torch.randn(rows, 1024, generator=generator) * 0.02).bfloat16()


if __name__ == "__main__":
    main()
