"""The page of the comparison: tables and plots from figures, put between markers of `docs/benchmarks.md`.

    <!-- measured: sizes -->
    whatever stands here is replaced
    <!-- end of sizes -->

What stands around the markers is written by hand.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
STEPS_PLOT, SIZES_PLOT, CHECKOUT_PLOT = "bytes-per-step.png", "bits-per-change.png", "checkout.png"
KINDS = {"bf16": "bf16", "fp8": "fp8 e4m3", "fp4": "packed fp4 e2m1", "bytes": "random bytes"}


def fill(page: str, sections: Mapping[str, str]) -> str:
    """Put sections between their markers. Raises KeyError for a section that has none in the page."""
    for name, text in sections.items():
        begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise KeyError(f"the page does not have the markers {begin} and {end} once each")
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}"
    return page


def sections(figures: Figures) -> dict[str, str]:
    """Every section's Markdown by its name; sections that were not measured are left out."""
    makers: dict[str, Callable[[Figures], str]] = {
        "machine": _machine,
        "demo": _demo,
        "sizes": _sizes,
        "speeds": _speeds,
        "snapshots": _snapshots,
        "stores": _stores,
        "s3": _s3,
        "memory": _memory,
    }
    return {name: make(figures) for name, make in makers.items() if name in figures or name in ("sizes", "speeds")}


def plot(figures: Figures, folder: Path) -> None:
    """Write the plots as PNG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    colors = _colors(figures)

    canvas, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for name, found in figures["demo"]["schemes"].items():
        sizes = found["nbytes"]
        axes.plot(range(1, len(sizes) + 1), [size / 1e6 for size in sizes], ".-", color=colors[name], label=name)
    axes.set(yscale="log", xlabel="step", ylabel="MB", title="Bytes of each step of the demo's run")
    _finish(canvas, axes, folder / STEPS_PLOT)

    kinds = {each["kind"]: None for each in figures["synthetic"]}
    canvas, panels = pyplot.subplots(1, len(kinds), figsize=(11, 4), sharey=True, layout="constrained", squeeze=False)
    for axes, kind in zip(panels[0], kinds, strict=True):
        inputs = [each for each in figures["synthetic"] if each["kind"] == kind]
        shares = [100 * each["changed"] / each["lanes"] for each in inputs]
        for name in inputs[0]["schemes"]:
            if name != "full":
                axes.plot(shares, [_bits(each, name) for each in inputs], ".-", color=colors[name], label=name)
        axes.plot(shares, [each["bound"] / each["changed"] for each in inputs], "k:", label="entropy")
        axes.set(xscale="log", yscale="log", xlabel="% of elements changed", title=KINDS[kind])
        axes.set_yticks([10, 20, 50, 100], ["10", "20", "50", "100"])
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("bits for each change")
    _finish(canvas, panels[0][-1], folder / SIZES_PLOT)

    canvas, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for name, found in figures["stores"].items():
        steps = list(found["checkout"])
        axes.plot(steps, [1e3 * value for value in found["checkout"].values()], ".-", color=colors[name], label=name)
    axes.set(yscale="log", xlabel="step that is checked out", ylabel="ms", title="Checkout from a local directory")
    _finish(canvas, axes, folder / CHECKOUT_PLOT)


def _finish(canvas: Any, axes: Any, file: Path) -> None:
    from matplotlib import pyplot

    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    canvas.savefig(file, dpi=90, metadata={"Software": None})  # no version in it, so that equal plots are equal files
    pyplot.close(canvas)


def _colors(figures: Figures) -> dict[str, str]:
    """A color for every peer, the same in all plots."""
    names = dict.fromkeys([*figures["demo"]["schemes"], *figures["stores"]])
    return {name: f"C{place}" for place, name in enumerate(names)}


def _machine(figures: Figures) -> str:
    machine = figures["machine"]
    before, after = machine["load"]
    load = f"The load of the machine was {before:.1f} before and {after:.1f} at the end"
    others = after > machine["threads"] + 1
    absent = ", ".join(machine["absent"])
    return (
        f"{machine['cpu']}, {machine['threads']} threads, {machine['memory']}, {machine['date']}, "
        f"{machine['versions']}. {load}"
        + (f": **other jobs ran beside** on the {machine['threads']} cores. " if others else ". ")
        + (f"Not installed, and so not in the tables: {absent}." if absent else "All peers were installed.")
    )


def _demo(figures: Figures) -> str:
    demo = figures["demo"]
    changed, lanes, raw, schemes = demo["changed"], demo["lanes"], demo["raw"], demo["schemes"]
    steps, xor = len(schemes["deltavc"]["nbytes"]), sum(schemes["xor-zstd"]["nbytes"])
    rows = []
    for name, found in schemes.items():
        total = sum(found["nbytes"])
        times = [f"{1e3 * found[stage]:,.1f}" for stage in ("encode", "decode", "apply")]
        rows.append(
            [
                _shown(name),
                f"{total / 1e3 / steps:,.0f}",
                f"{total / raw:.2%}",
                f"{8 * total / changed:.1f}",
                f"{total / xor:.2f}",
                *times,
            ]
        )
    head = ["", "kB a step", "of the weights", "bits a change", "of `xor-zstd`", "encode, ms", "decode", "apply"]
    bound = f"{demo['bound'] / changed:.1f}"
    said = (
        f"{steps} steps, {changed / lanes:.2%} of the elements changed on average, {raw / steps / 1e6:.1f} MB of "
        f"weights. Positions and values taken as independent draws have an entropy of {bound} bits a change."
    )
    plot = f"![Bytes of each step, by scheme](images/{STEPS_PLOT})"
    return f"{said}\n\n{_table(head, rows)}\n\n{plot}"


def _sizes(figures: Figures) -> str:
    inputs = figures["synthetic"]
    names = [name for name in inputs[0]["schemes"] if name != "full"]
    rows = []
    for each in inputs:
        entropy = each["bound"] / each["changed"]
        bits = [_bits(each, name) for name in names]
        first = [KINDS[each["kind"]], f"{each['changed'] / each['lanes']:.3%}", f"{entropy:.2f}"]
        over = f"{bits[0] / entropy - 1:+.1%}"
        rows.append([*first, f"{bits[0]:.2f}", over, *(f"{value:,.1f}" for value in bits[1:])])
    head = ["", "changed", "entropy", "deltavc", "over it", *map(_shown, names[1:])]
    plot = f"![Bits for each change against density](images/{SIZES_PLOT})"
    return f"{_table(head, rows)}\n\n{plot}"


def _speeds(figures: Figures) -> str:
    inputs = [each for each in figures["synthetic"] if each["kind"] != "bytes"]  # which is a question of size
    names = list(inputs[0]["schemes"])
    parts = []
    for stage in ("encode", "decode", "apply"):
        rows = []
        for each in inputs:
            speeds = [_speed(each["raw"], each["schemes"][name][stage]) for name in names]
            rows.append([KINDS[each["kind"]], f"{each['changed'] / each['lanes']:.3%}", *speeds])
        head = [f"{stage}, GB/s", "changed", *map(_shown, names)]
        parts.append(_table(head, rows))
    return "\n\n".join(parts)


def _snapshots(figures: Figures) -> str:
    rows = []
    for title, found in figures["snapshots"].items():
        raw, seconds = found["raw"], found["seconds"]
        speeds = [_speed(raw, seconds[what]) for what in ("encode", "decode", "zstd encode", "zstd decode", "copy")]
        own, zstd = (f"{found[what] / raw:.1%}" for what in ("nbytes", "zstd nbytes"))
        rows.append([title, f"{raw / 1e6:.0f}", own, *speeds[:2], zstd, *speeds[2:]])
    head = ["", "MB", "deltavc", "encode, GB/s", "decode", "zstd 1", "encode", "decode", "a copy"]
    return _table(head, rows)


def _stores(figures: Figures) -> str:
    stores = figures["stores"]
    steps = list(next(iter(stores.values()))["checkout"])
    rows = []
    for name, found in stores.items():
        first, *rest = found["commit"]
        row = [
            _shown(name),
            f"{found['nbytes'][0] / 1e6:.1f}",
            f"{found['nbytes'][-1] / 1e6:.1f}",
            f"{(found['nbytes'][-1] - found['nbytes'][0]) / 1e6 / len(rest):.2f}",
            f"{1e3 * first:,.0f}",
            f"{1e3 * _median(rest):,.0f}",
        ]
        rows.append(row + [f"{1e3 * value:,.0f}" for value in found["checkout"].values()])
    head = ["", "first, MB", "all, MB", "a step, MB", "first commit, ms", "a commit, ms"]
    head += [f"checkout of {step}, ms" for step in steps]
    return f"{_table(head, rows)}\n\n![Checkout of step k against k](images/{CHECKOUT_PLOT})"


def _s3(figures: Figures) -> str:
    rows = []
    for name, (first, *rest) in figures["s3"].items():
        local = figures["stores"][name]["commit"][1:]
        rows.append([name, f"{1e3 * first:,.0f}", f"{1e3 * _median(rest):,.0f}", f"{1e3 * _median(local):,.0f}"])
    return _table(["", "first commit, ms", "a commit, ms", "to a local directory"], rows)


def _memory(figures: Figures) -> str:
    memory = figures["memory"]
    rows = [
        [_shown(name), f"{found['commit'] / 1e6:,.0f}", f"{found['checkout'] / 1e6:,.0f}"]
        for name, found in memory.items()
    ]
    return _table(["", "a commit, MB", "a checkout, MB"], rows)


def _shown(name: str) -> str:
    """Names of codecs and commands look like code; the others are words."""
    return f"`{name}`" if "-" in name else name


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _bits(found: Figures, name: str) -> float:
    return float(8 * sum(found["schemes"][name]["nbytes"]) / found["changed"])


def _speed(nbytes: float, seconds: float) -> str:
    speed = nbytes / seconds / 1e9
    return f"{speed:.2f}" if speed < 10 else f"{speed:,.0f}"


def _median(values: list[float]) -> float:
    return statistics.median(values)
