"""Measurements of the comparison: peers take turns within one run, and medians are kept.

Whatever else the machine does thereby hits all of them alike, so that ratios hold where milliseconds do not. Every
result is compared with what it should be, outside the times.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import zstandard

from bench.compare_inputs import Lanes, bound_nbits
from bench.peers import commands
from bench.peers.schemes import Scheme, frames, same
from bench.peers.stores import Store, stores
from deltavc.change import Dense
from deltavc.delta import codecs
from deltavc.delta.codecs.base import FrameHeader
from deltavc.kernels import pool

STAGES = ("encode", "decode", "apply")
PATIENCE_SECONDS = 1.0
"""A peer that took longer than this has no more rounds."""

Figures = dict[str, Any]


def measure_steps(
    make: Mapping[str, Callable[[Lanes, Lanes], Scheme]], pairs: Iterable[tuple[Lanes, Lanes]], rounds: int
) -> Figures:
    """Bytes and median seconds of encode, decode and apply of each scheme, over all the steps given.

    Returns:
        changed, lanes, raw (bytes) and bound (bits), summed over the steps, and for each scheme the bytes of every
        step and its medians over rounds and steps.
    """
    found: Figures = {"changed": 0, "lanes": 0, "raw": 0, "bound": 0.0, "schemes": {}}
    seconds: dict[str, dict[str, list[float]]] = {}
    for old, new in pairs:
        found["changed"] += sum(int((old[name] != tensor).sum()) for name, tensor in new.items())
        found["lanes"] += sum(tensor.numel() for tensor in new.values())
        found["raw"] += sum(tensor.nbytes for tensor in new.values())
        found["bound"] += bound_nbits(*(torch.cat([each[name].reshape(-1) for name in new]) for each in (old, new)))
        made = {name: scheme(old, new) for name, scheme in make.items()}
        live = {name: tensor.clone() for name, tensor in old.items()}
        spent = dict.fromkeys(made, 0.0)
        warm_up = 0 if seconds else 1  # the first round of all compiles
        for number in range(warm_up + rounds):
            for name, scheme in made.items():
                if number > warm_up and spent[name] > PATIENCE_SECONDS:
                    continue
                for place, tensor in live.items():
                    tensor.copy_(old[place])
                taken = dict(zip(STAGES, _timed(scheme, live), strict=True))
                if not same(live, new):
                    raise SystemExit(f"{name} gave other weights back")
                spent[name] += sum(taken.values())
                if number >= warm_up:
                    for stage, value in taken.items():
                        seconds.setdefault(name, {}).setdefault(stage, []).append(value)
        for name, scheme in made.items():
            found["schemes"].setdefault(name, {"nbytes": []})["nbytes"].append(scheme.nbytes)
    for name, stages in seconds.items():
        found["schemes"][name] |= {stage: statistics.median(values) for stage, values in stages.items()}
    return found


def measure_snapshot(state: Lanes, rounds: int) -> Figures:
    """Share of the raw bytes, and seconds of encode and decode, of whole states; beside zstd 1 and a copy."""
    parts = [(frame.new.reshape(-1), frame.new.element_size()) for frame in frames(state, state)]
    changes = [Dense("add", lanes) for lanes, _ in parts]

    def encode(change: Dense) -> tuple[str, bytes]:
        name = codecs.choose(change, change.num_changes)
        name = "planes" if name == "sparse" else name  # tensors of zeros are few
        return name, codecs.codec(name).encode(change, change.num_changes)

    def decode(written: tuple[str, bytes], change: Dense, width: int) -> Any:
        header = FrameHeader(change.num_changes, width, "add", change.num_changes)
        return codecs.codec(written[0]).decode(written[1], header)

    def squeeze(lanes: torch.Tensor) -> bytes:
        return zstandard.ZstdCompressor(level=1).compress(lanes.numpy().data)

    def expand(body: bytes) -> bytes:
        return zstandard.ZstdDecompressor().decompress(body)

    encoders = [functools.partial(encode, change) for change in changes]
    written = pool.run(encoders)
    decoders = [
        functools.partial(decode, one, change, width)
        for one, change, (_, width) in zip(written, changes, parts, strict=True)
    ]
    for change, read in zip(changes, pool.run(decoders), strict=True):
        if not torch.equal(change.values, read.values):
            raise SystemExit("a snapshot came back different")
    squeezers = [functools.partial(squeeze, lanes) for lanes, _ in parts]
    squeezed = pool.run(squeezers)
    tasks: dict[str, list[Callable[[], Any]]] = {
        "encode": encoders,
        "decode": decoders,
        "zstd encode": squeezers,
        "zstd decode": [functools.partial(expand, body) for body in squeezed],
        "copy": [lanes.clone for lanes, _ in parts],
    }
    seconds: dict[str, list[float]] = {what: [] for what in tasks}
    for _, what in itertools.product(range(rounds), tasks):
        began = time.perf_counter()
        pool.run(tasks[what])
        seconds[what].append(time.perf_counter() - began)
    raw = sum(tensor.nbytes for tensor in state.values())
    medians = {what: statistics.median(values) for what, values in seconds.items()}
    nbytes, zstd_nbytes = sum(len(payload) for _, payload in written), sum(map(len, squeezed))
    return {"raw": raw, "nbytes": nbytes, "zstd nbytes": zstd_nbytes, "seconds": medians}


def measure_stores(made: Mapping[str, Store], states: list[Lanes], places: Iterable[int], rounds: int) -> Figures:
    """Seconds of every commit, median seconds of checkouts of the steps `places`, and bytes after every step."""
    found: Figures = {name: {"commit": [], "nbytes": [], "checkout": {}} for name in made}
    for step, state in enumerate(states):
        for name, store in made.items():
            given = {key: tensor.clone() for key, tensor in state.items()}  # as a trainer's own, which moves on
            found[name]["commit"].append(_seconds(store.commit, step, given))
            found[name]["nbytes"].append(store.nbytes())
    for store in made.values():
        store.checkout(len(states) - 1)  # compiles and warms up
    for step in places:
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, store in made.items():
                if sum(seconds[name]) < PATIENCE_SECONDS:
                    began = time.perf_counter()
                    state = store.checkout(step)
                    seconds[name].append(time.perf_counter() - began)
                    if not same(state, states[step]):
                        raise SystemExit(f"{name} gave other weights back for step {step}")
        for name, values in seconds.items():
            found[name]["checkout"][step] = statistics.median(values)
    return found


def measure_commits(made: Mapping[str, Store], states: list[Lanes]) -> dict[str, list[float]]:
    """Seconds of every commit; the last state is read back and compared."""
    found: dict[str, list[float]] = {name: [] for name in made}
    for step, state in enumerate(states):
        for name, store in made.items():
            found[name].append(_seconds(store.commit, step, state))
    for name, store in made.items():
        if not same(store.checkout(len(states) - 1), states[-1]):
            raise SystemExit(f"{name} gave other weights back")
    return found


def peak_memory(name: str, folder: Path, states: list[Lanes]) -> Figures:
    """The most memory that commits and a checkout by one store take, beyond what was held before.

    Asks Linux, and wants a process of its own.
    """
    store = stores()[name](folder)
    try:
        store.commit(0, states[0])
        store.checkout(0)
        commits = [_peak(store.commit, step, state) for step, state in enumerate(states[1:], start=1)]
        return {"commit": max(commits[1:] or commits), "checkout": _peak(store.checkout, len(states) - 1)}
    finally:
        store.close()


def _peak(call: Callable[..., Any], *arguments: Any) -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is given back, or the next call would seem to take nothing
    commands.peak_nbytes = 0
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the most that was held is what is held now
    before = commands.most_held("self")
    call(*arguments)
    return commands.most_held("self") - before + commands.peak_nbytes


def _timed(scheme: Scheme, live: Lanes) -> tuple[float, float, float]:
    return _seconds(scheme.encode), _seconds(scheme.decode), _seconds(scheme.apply, live)


def _seconds(call: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began
