"""What does a commit of many ranks ask for, and how does that grow with ranks, tensors and bytes?

Groups of 1, 2, 4 and 8 gloo ranks (processes of this machine) live beside each other and take turns, so that whatever
else the machine does hits all of them alike. Each commits the same bf16 weights, cut by rows, 0.5 % of the elements
changed by one ULP, to a directory, and checks them out again. Counted on every rank, and not worked out:

- bytes that came in on its TCP connections, as the kernel counts them: gloo's, and those to the process group's store
- collectives, and questions to that store
- requests to the object store and their bytes; SQL statements
- CPU seconds of the process, beside seconds by the clock: ranks that share a core wait for each other

Then, for more ranks than there are: what each works out of what all say that they hold, and the records of rank 0.

    python -m bench.sharded             a few minutes on 2 cores, 3 GB of memory; fills in docs/scaling.md
    python -m bench.sharded --quick     small inputs, to see that it runs; only prints
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

import deltavc
from bench import compare, compare_page
from bench.sharded_ranks import DENSITY, Group, groups
from deltavc import edges
from deltavc.base import Point
from deltavc.layout import Layout, TensorSpec
from deltavc.packing import Read
from deltavc.sharded.arrangement import Arrangement
from deltavc.sharded.pieces import Pieces, Told
from deltavc.sharded.words import Share

PAGE = compare.ROOT / "docs" / "scaling.md"
RESULTS = compare.ROOT / "bench" / "results" / "sharded.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. mib, tensors: of the large state; the small one has many more tensors, and next to no bytes.
    arrangements: how many ranks there might be, and tensors that all of them hold pieces of."""

    ranks: tuple[int, ...] = (1, 2, 4, 8)
    mib: int = 256
    tensors: int = 32
    many: int = 512
    rounds: int = 7
    arrangements: tuple[tuple[int, int], ...] = ((64, 400), (512, 100), (512, 400))


QUICK = Plan(ranks=(1, 2), mib=4, tensors=4, many=16, rounds=1, arrangements=((8, 10),))


# --- measuring ---


def measure(plan: Plan) -> dict[str, Any]:
    began = os.getloadavg()[0]
    figures: dict[str, Any] = {"plan": asdict(plan), "density": DENSITY}
    with groups(plan.ranks) as found:
        large = plan.mib << 20
        figures["first"] = in_turns(found, 1, "start", "large", large, plan.tensors)
        in_turns(found, 2, "commit")  # which compile and warm up
        figures["commits"] = in_turns(found, plan.rounds, "commit")
        figures["checkouts"] = in_turns(found, max(1, plan.rounds // 2), "checkout", "step:1")
        figures["many_first"] = in_turns(found, 1, "start", "many", plan.many * 256, plan.many)
        in_turns(found, 1, "commit")
        figures["many"] = in_turns(found, max(1, plan.rounds // 2), "commit")
    figures["arranging"] = [arranged(*each) for each in plan.arrangements]
    figures["records"] = [recorded(*each) for each in plan.arrangements]
    figures["machine"] = compare.machine(began)
    return figures


def in_turns(found: list[Group], rounds: int, *what: Any) -> dict[str, Any]:
    """Have each group do the same so many times, one after the other. Returns, by number of ranks, medians."""
    told: dict[int, list[list[dict[str, float]]]] = {group.size: [] for group in found}
    for _ in range(rounds):
        for group in found:
            told[group.size].append(group.ask(*what))
    return {str(size): summary(each) for size, each in told.items()}


def summary(rounds: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over rounds: of the slowest rank's time, of CPU per rank, and of what ranks counted: all, and rank 0."""
    names = sorted({name for told in rounds for one in told for name in one} - {"wall", "cpu", "exchange"})
    middle = statistics.median
    return {
        "wall": middle(max(one["wall"] for one in told) for told in rounds),
        "cpu": middle(max(one["cpu"] for one in told) for told in rounds),
        "cpu_all": middle(sum(one["cpu"] for one in told) for told in rounds),
        "all": {name: middle(sum(one.get(name, 0) for one in told) for told in rounds) for name in names},
        "first": {name: middle(told[0].get(name, 0) for told in rounds) for name in names},
    }


def arranged(size: int, tensors: int) -> dict[str, float]:
    """What every rank does once with what all say that they hold: pieces of every tensor."""
    bodies = [described(rank, size, tensors) for rank in range(size)]
    before, began = resident(), time.process_time()
    told = Told.read(bodies)
    read = time.process_time()
    arrangement = Arrangement.of(told, 0)
    done = time.process_time()
    pieces = size * tensors
    nbytes = (resident() - before) / pieces
    assert len(arrangement.owned) == tensors
    return {
        "ranks": size,
        "tensors": tensors,
        "told_bytes": sum(map(len, bodies)) / pieces,
        "read_us": (read - began) / pieces * 1e6,
        "arrange_us": (done - read) / pieces * 1e6,
        "memory_bytes": nbytes,
    }


def described(rank: int, size: int, tensors: int) -> bytes:
    state = {
        f"model.layers.{number // 8}.mlp.{number % 8}.weight": deltavc.Shard(
            torch.empty(1, 4, dtype=torch.bfloat16), (size, 4), (rank, 0)
        )
        for number in range(tensors)
    }
    return Pieces.of(state).description(())


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def recorded(size: int, tensors: int) -> dict[str, float]:
    """What rank 0 does with what all ranks say that they have uploaded, a pack each."""
    specs = [TensorSpec(f"model.layers.{number:05d}.weight", "bfloat16", (size, 4)) for number in range(tensors)]
    layout = Layout.of(specs)
    source = torch.Generator().manual_seed(3)
    ids = [bytes(torch.randint(256, (32,), generator=source).tolist()).hex() for _ in range(size + 2)]
    mark = ["2026-01-02T03:04:05.678901+00:00", None]
    share = {"frames_nbytes": 1 << 20, "changed_lanes": 1 << 18, "nbytes": 1 << 20, "files": {}, "mark": mark}
    bodies = [
        json.dumps({**share, "packs": [[pack, 1 << 20, [(1 << 20) - 9000, 8500, 20000]]]}).encode() for pack in ids[2:]
    ]
    values = {spec.name: number for number, spec in enumerate(specs)}
    began = time.process_time()
    added = Share.added([Share.read(body) for body in bodies])
    found = Read(added.changed_lanes, set(values))
    before: Point[Any] = Point(ids[0], layout, values, None)
    edge = edges.delta(before, layout, values, ids[1], added.packed, found)
    nbytes = len(edge.body)
    seconds = time.process_time() - began
    return {
        "ranks": size,
        "tensors": tensors,
        "seconds": seconds,
        "share_bytes": len(bodies[0]),
        "edge_bytes": nbytes,
    }


# --- the page ---


def sections(figures: dict[str, Any]) -> dict[str, str]:
    """What goes between the markers of the page."""
    machine = figures["machine"]
    before, after = machine["load"]
    where = f"{machine['cpu']}, {machine['threads']} threads, {machine['memory']}, {machine['date']}."
    where += f" The load of the machine was {before:.1f} before and {after:.1f} at the end."
    return {
        "machine": where,
        "commits": _commits(figures),
        "messages": _messages(figures),
        "arranging": _arranging(figures),
    }


def _commits(figures: dict[str, Any]) -> str:
    rows = [
        "| ranks | commit | CPU of a rank | CPU of all | PUTs | SQL statements | between ranks, kB | checkout | GETs |"
    ]
    rows.append("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    commits, checkouts = figures["commits"], figures["checkouts"]
    alone, out = commits["1"], checkouts["1"]
    for size, one in commits.items():
        other = checkouts[size]
        rows.append(
            f"| {size} | {one['wall'] / alone['wall']:.2f} | {one['cpu'] / alone['cpu']:.2f} |"
            f" {one['cpu_all'] / alone['cpu_all']:.2f} | {one['all']['put']:.0f} | {one['first']['statements']:.0f} |"
            f" {between(one) / 1e3:.1f} | {other['wall'] / out['wall']:.2f} | {other['all']['get']:.0f} |"
        )
    return "\n".join(rows)


def _messages(figures: dict[str, Any]) -> str:
    rows = ["| ranks | tensors | sums | gathers | questions | from gloo, bytes | from the store, bytes |"]
    rows.append("|---:|---:|---:|---:|---:|---:|---:|")
    for kind, tensors in (("commits", figures["plan"]["tensors"]), ("many", figures["plan"]["many"])):
        for size, one in figures[kind].items():
            count = int(size)
            each = {name: one["all"].get(name, 0) / count for name in ("gloo_bytes", "store_bytes", "questions")}
            rows.append(
                f"| {size} | {tensors} | {one['first']['sums']:.0f} | {one['first']['gathers']:.0f} |"
                f" {each['questions']:.0f} | {each['gloo_bytes']:,.0f} | {each['store_bytes']:,.0f} |"
            )
    return "\n".join(rows)


def _arranging(figures: dict[str, Any]) -> str:
    rows = [
        "| ranks | tensors | told, bytes a piece | CPU, µs a piece | memory, bytes a piece | records, ms | edge, kB |"
    ]
    rows.append("|---:|---:|---:|---:|---:|---:|---:|")
    for one, record in zip(figures["arranging"], figures["records"], strict=True):
        rows.append(
            f"| {one['ranks']} | {one['tensors']} | {one['told_bytes']:.1f} |"
            f" {one['read_us'] + one['arrange_us']:.1f} |"
            f" {one['memory_bytes']:.0f} | {record['seconds'] * 1e3:.1f} | {record['edge_bytes'] / 1e3:.0f} |"
        )
    return "\n".join(rows)


def between(one: dict[str, Any]) -> float:
    """Bytes that came in on all ranks, of a commit."""
    return float(one["all"]["gloo_bytes"] + one["all"]["store_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small inputs, to see that it runs; only prints")
    given = parser.parse_args()
    figures = measure(QUICK if given.quick else Plan())
    made = sections(figures)
    print("\n\n".join(made.values()))
    if not given.quick:
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
        PAGE.write_text(compare_page.fill(PAGE.read_text(), made))


if __name__ == "__main__":
    sys.exit(main())
