"""Three fine-tuned variants of one model, swapped in place while it serves: `python examples/hot_swap.py`.

    main ──> base ──┬──> code     Python's standard library
                    ├──> prose    its docstrings
                    └──> names    the names of Unicode's characters

Each variant is a branch. Moving from one to another walks back to the base and out again, so what has to be fetched is
what the two differ in, not a model; and what stops serving is the swap alone, since all else happens beside it.

What deltavc does is in `commit_variants` and `swap`; the rest is a trainer, a load and a table.
"""

from __future__ import annotations

import copy
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from tiny_lm import LanguageModel, Trainer, as_bytes, character_names, docstrings, stdlib_sources
from torch import Tensor

import deltavc

PROMPTS = 4
BYTES_A_REQUEST = 8


@dataclass(frozen=True)
class Move:
    """One swap. checkout_nbytes: what a checkout of the variant from nothing would fetch."""

    before: str
    variant: str
    applied: deltavc.Applied
    checkout_nbytes: int


@dataclass
class Load:
    """A thread that asks the model for text as fast as it answers. requests: how many each version answered."""

    model: LanguageModel
    replica: deltavc.Replica
    requests: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        prompts = as_bytes("a").expand(PROMPTS, -1)
        while not self._ended.is_set():
            begin = time.perf_counter()
            with self.replica.reading() as version:  # no swap happens inside: a text is of one version
                self.model.continued(prompts, BYTES_A_REQUEST)
            self.requests[version] += 1
            self.slowest = max(self.slowest, time.perf_counter() - begin)


def commit_variants(
    repo: deltavc.Repo, texts: Mapping[str, Tensor], *, base_steps: int, steps: int, **shape: int
) -> LanguageModel:
    """Train a base on all texts and commit it to main; then, from it, a variant on each, committed to its branch.

    Returns:
        The base as bf16, as it was committed.
    """
    torch.manual_seed(0)
    base = Trainer(LanguageModel(**shape), torch.cat(list(texts.values())))
    base.steps(base_steps, learning_rate=3e-3)
    repo.commit(base.masters, "main", "base", dtype="bfloat16")
    for variant, text in texts.items():
        repo.branch(variant, at="main")
        tuned = Trainer(copy.deepcopy(base.masters), text)
        tuned.steps(steps, learning_rate=1e-5)
        repo.commit(tuned.masters, variant, f"base, tuned on {variant}", dtype="bfloat16")
    return copy.deepcopy(base.masters).to(torch.bfloat16).eval()


def swap(repo: deltavc.Repo, model: LanguageModel, tour: list[str], *, seconds: float) -> tuple[list[Move], Load]:
    """Move the model from variant to variant while it serves, staying a while at each."""
    moves = []
    with repo.replica(model, at="main") as replica, Load(model, replica) as load:
        before = "main"
        for variant in tour:
            time.sleep(seconds)
            replica.stage(variant).wait()  # beside serving
            applied = replica.apply()  # the pause
            nbytes = sum(version.stored_bytes for version in repo.log(variant))
            moves.append(Move(before, variant, applied, nbytes))
            before = variant
        time.sleep(seconds)
        replica.verify()
    return moves, load


def move_table(moves: list[Move], load: Load) -> Table:
    table = Table(title="Moves under load", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("move", "fetched", "checkout", "staged in", "pause", "requests"):
        table.add_column(heading, justify="left" if heading == "move" else "right", no_wrap=True)
    for move in moves:
        applied = move.applied
        table.add_row(
            f"{move.before} -> {move.variant}",
            f"{applied.nbytes / 1e3:,.0f} kB",
            f"{move.checkout_nbytes / 1e3:,.0f} kB",
            f"{applied.stage_seconds * 1e3:.0f} ms",
            f"{applied.pause_seconds * 1e3:.2f} ms",
            f"{load.requests[applied.version]:,}",
        )
    return table


def loss_table(repo: deltavc.Repo, model: LanguageModel, texts: Mapping[str, Tensor]) -> Table:
    table = Table(title="Held-out loss", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", *texts):
        table.add_column(heading, justify="right")
    for variant in ("main", *texts):
        repo.checkout(variant, into=model)
        losses = (Trainer(model, text).held_out_loss() for text in texts.values())
        table.add_row(variant, *(f"{loss:.3f}" for loss in losses))
    return table


def main() -> None:
    console = Console()
    torch.set_num_threads(1)  # leave cores for staging, as a server would
    texts = {"code": stdlib_sources(), "prose": docstrings(), "names": character_names()}
    with tempfile.TemporaryDirectory(prefix="deltavc-swap-") as folder, deltavc.init(Path(folder) / "repo") as repo:
        console.print("Training a base and three variants of it ...")
        model = commit_variants(repo, texts, base_steps=80, steps=20)
        moves, load = swap(repo, model, ["code", "prose", "names"] * 2 + ["main", "code"], seconds=0.5)
        console.print(move_table(moves, load))
        console.print(f"{load.requests.total():,} requests; the slowest took {load.slowest * 1e3:.0f} ms.\n")
        console.print(loss_table(repo, model, texts))


if __name__ == "__main__":
    main()
