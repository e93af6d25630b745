"""How long is it from one try of a bisect to the next, beside writing a checkpoint?

bf16 weights in 16 tensors, 100 steps, each of which changes 0.5 % of the elements by one ULP, in a repository in a
directory, seed fixed. Step 57 is bad: once a step like the others, once one that changes nine elements of ten. The
search runs as `deltavc bisect run` does, in a directory; the time of each move is taken, and in the same run, after
it, that of checking the same version out anew, and of copying its file.

    python bench/bisecting.py [--mib 256] [--steps 100]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

import deltavc
from deltavc.bisect.marks import Marks
from deltavc.bisect.search import Try

BAD = 0.57
DENSITY = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    print(f"{given.mib} MiB of bf16, {given.steps} steps that change {DENSITY:.1%}")
    for bad_density in (DENSITY, 0.9):
        with tempfile.TemporaryDirectory(prefix="bench-bisect-") as folder:
            measure(Path(folder), given.mib, given.steps, bad_density)


def measure(folder: Path, mib: int, steps: int, bad_density: float) -> None:
    """Print a line for each try of one search, and the medians."""
    bad = int(BAD * steps)
    with deltavc.init(folder / "repo") as repo:
        train(repo, mib, steps, bad, bad_density)
        bisector = repo.bisector()
        marks = Marks().adding("good", [repo.resolve("step:0")]).adding("bad", [repo.resolve("main")])
        bench = bisector.workbench(folder / "tries")
        at, rows = None, []
        print(f"\nstep {bad} is bad, and changes {bad_density:.1%}")
        while isinstance(choice := bisector.standing(marks).choice, Try):
            version = repo.version(choice.version)
            moved = bench.move(version.id)
            began = time.perf_counter()
            repo.checkout(version.id, path=folder / "whole")
            checkout = time.perf_counter() - began
            began = time.perf_counter()
            shutil.copyfile(folder / "whole" / "model.safetensors", folder / "copy")
            copy = time.perf_counter() - began
            shutil.rmtree(folder / "whole")
            way = "written whole" if moved.whole else f"{abs(version.step - at)} deltas"
            print(
                f"  step {version.step:3}  {way:13}  moved in {moved.seconds * 1e3:7.1f} ms, "
                f"{moved.fetched_bytes / 1e6:6.1f} MB fetched; checked out in {checkout * 1e3:7.1f} ms; "
                f"copied in {copy * 1e3:6.1f} ms"
            )
            if not moved.whole:
                rows.append((moved.seconds, checkout, copy))
            at = version.step
            marks = marks.adding("bad" if at >= bad else "good", [version.id])
        bench.close()
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"  {len(rows) + 1} tries; medians after the first: moved {medians[0] * 1e3:.1f} ms, ", end="")
        print(f"{medians[0] / medians[1]:.2f} of a checkout, {medians[0] / medians[2]:.2f} of a copy")


def train(repo: deltavc.Repo, mib: int, steps: int, bad: int, bad_density: float) -> None:
    """Commit steps; each changes elements of its own."""
    generator = torch.Generator().manual_seed(7)
    size = (mib << 20) // 2 // 16
    state = {f"layer.{n:02}": (torch.randn(size, generator=generator) * 0.02).bfloat16() for n in range(16)}
    with repo.writer("main", snapshots=deltavc.SnapshotPolicy(max_edges=10**6, max_ratio=1e9)) as writer:
        for step in range(steps + 1):
            count = int(size * (bad_density if step == bad else DENSITY))
            places = torch.randint(size, (count,), generator=generator)
            for tensor in state.values():
                tensor.view(torch.int16)[places] ^= 1 if step != bad else 0x55
            writer.commit(state, step=step)


if __name__ == "__main__":
    main()
