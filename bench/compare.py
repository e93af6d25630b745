"""How small and how fast is deltavc beside other ways to keep or send the steps of a training run?

All peers get the same inputs, in turns, in one run (`bench.compare_inputs`, `bench.peers`), and what comes back is
compared bit for bit. Figures go to `bench/results/compare.json`, tables and plots into `docs/benchmarks.md`:

    python -m bench.compare             about 6 minutes on 2 cores, 3 GB of memory and of temporary files
    python -m bench.compare --quick     a few seconds of made-up inputs, to see that it runs; only prints
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import compare_inputs, compare_measure, compare_page
from bench.peers import commands
from bench.peers.schemes import schemes
from bench.peers.stores import s3_stores, stores
from deltavc.kernels import pool

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "bench" / "results" / "compare.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. mib: of each synthetic state. steps: of the run. rounds: of what takes turns."""

    kinds: tuple[str, ...] = tuple(compare_page.KINDS)
    mib: int = 32
    densities: tuple[float, ...] = (0.00085, 0.001, 0.01, 0.03)
    steps: int = 12
    rounds: int = 3
    demo: bool = True
    s3: bool = True
    memory: bool = True


QUICK = Plan(kinds=("bf16",), mib=1, densities=(0.01,), steps=2, rounds=1, demo=False, s3=False, memory=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny made-up inputs; print, and write nothing")
    plan = QUICK if parser.parse_args().quick else Plan()
    figures = measure(plan)
    if plan is QUICK:
        print("\n\n".join(f"{name}\n\n{text}" for name, text in compare_page.sections(figures).items()))
        return
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    compare_page.plot(figures, IMAGES)
    PAGE.write_text(compare_page.fill(PAGE.read_text(), compare_page.sections(figures)))
    print(f"{PAGE.relative_to(ROOT)} and {RESULTS.relative_to(ROOT)} have the figures.")


def measure(plan: Plan) -> dict[str, Any]:
    """Measure everything; figures as plain JSON."""
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="deltavc-bench-") as directory:
        folder = Path(directory)
        run = folder / "run"
        run.mkdir()
        with _told("inputs"):
            if plan.demo:
                compare_inputs.record_demo(run, plan.steps)
            else:
                compare_inputs.record_synthetic(run, plan.steps, plan.mib << 19)
            states = list(compare_inputs.read_steps(run, plan.steps))
        figures: dict[str, Any] = {}
        files = folder / "files"
        files.mkdir()
        make = schemes(files)
        with _told("steps of the demo"):
            figures["demo"] = compare_measure.measure_steps(make, itertools.pairwise(states), rounds=1)
        with _told("synthetic steps"):
            figures["synthetic"] = [_synthetic(plan, make, kind, density) for kind, density in _inputs(plan)]
        with _told("snapshots"):
            figures["snapshots"] = _measure_snapshots(plan, states[0])
        with _told("stores"):
            figures["stores"] = _measure_local(plan, folder / "stores", states)
        if plan.s3:
            with _told("S3"):
                figures["s3"] = _measure_s3(folder / "s3", states)
        if plan.memory and sys.platform == "linux":
            with _told("memory"):
                figures["memory"] = _measure_memory(folder / "memory", run)
        figures["machine"] = machine(began)
    return figures


def _inputs(plan: Plan) -> list[tuple[str, float]]:
    return [(kind, density) for kind in plan.kinds for density in plan.densities]


def _synthetic(plan: Plan, make: Any, kind: str, density: float) -> dict[str, Any]:
    num_lanes = (plan.mib << 20) // (2 if kind == "bf16" else 1)
    old, new = ({"weights": lanes} for lanes in compare_inputs.synthetic(kind, num_lanes, density))
    return {"kind": kind, **compare_measure.measure_steps(make, [(old, new)], plan.rounds)}


def _measure_snapshots(plan: Plan, real: dict[str, torch.Tensor]) -> dict[str, Any]:
    names = {"bf16": "bf16, N(0, 0.02)", "fp8": "fp8 e4m3, the same"}
    states = {"bf16, the demo's model" if plan.demo else "bf16, made up": real}
    for kind, title in ((kind, names[kind]) for kind in plan.kinds if kind in names):
        num_lanes = (plan.mib << 20) // (2 if kind == "bf16" else 1)
        states[title] = {"weights": compare_inputs.synthetic(kind, num_lanes, plan.densities[0])[0]}
    return {title: compare_measure.measure_snapshot(state, plan.rounds) for title, state in states.items()}


def _measure_local(plan: Plan, folder: Path, states: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    folder.mkdir()
    made = {name: make(folder / str(place)) for place, (name, make) in enumerate(stores().items())}
    places = sorted({0, plan.steps // 4, plan.steps // 2, plan.steps})
    try:
        return compare_measure.measure_stores(made, states, places, plan.rounds)
    finally:
        for store in made.values():
            store.close()


def _measure_s3(folder: Path, states: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    from tests.servers import S3Server, s3_server

    folder.mkdir()
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # deltavc's copies of what lies in S3
    with s3_server() as endpoint:
        made = {name: make() for name, make in s3_stores(S3Server(endpoint), folder).items()}
        try:
            return compare_measure.measure_commits(made, states)
        finally:
            for store in made.values():
                store.close()


def _measure_memory(folder: Path, run: Path) -> dict[str, Any]:
    folder.mkdir()
    found = {}
    for place, name in enumerate(stores()):
        # A process each, spawned, so that nobody finds memory that another one left.
        with multiprocessing.get_context("spawn").Pool(1) as processes:
            found[name] = processes.apply(_peak_memory, (name, folder / str(place), run))
    return found


def _peak_memory(name: str, folder: Path, run: Path) -> dict[str, Any]:
    return compare_measure.peak_memory(name, folder, list(compare_inputs.read_steps(run, 3)))


def machine(load: float) -> dict[str, Any]:
    """What it was measured on, and what was missing there; `load` is that of before."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    programs = [name for name in ("zstd", "restic") if not commands.installed(name)]
    packages = [name for name in ("moonclip",) if importlib.util.find_spec(name) is None]
    return {
        "cpu": _cpu(),
        "threads": pool.size(),
        "memory": f"{total / 1e9:.0f} GB",
        "date": time.strftime("%Y-%m-%d"),
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}",
        "load": [load, os.getloadavg()[0]],
        "absent": programs + packages,
    }


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


@contextmanager
def _told(what: str) -> Iterator[None]:
    began = time.perf_counter()
    print(f"{what} ...", end=" ", flush=True)
    yield
    print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
