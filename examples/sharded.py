"""Many ranks, one version: four processes train a model, two others write text with it together: `make sharded`.

    trainer, 4 ranks: FSDP2                                    sampler, 2 ranks: tensor parallel
    every tensor cut by rows                                   layers cut by columns or rows, the rest copied
      rank 0 ──diff, encode──┐                                   ┌──> rank 0, its own frames ──┐  both or none,
      rank 1 ──diff, encode──┼──> one version of every step ─────┤                             ├─ between two texts
      rank 2 ──diff, encode──┤      └── a bad one is rolled back └──> rank 1, its own frames ──┘
      rank 3 ──diff, encode──┘

No weights travel between ranks, and none of them holds the whole model but to prove something at the end: what the
trainer's ranks hold, what the sampler's ranks hold and what one process checks out are the same bits.

What deltavc does is in `train` and `sample`; the rest is what processes tell each other.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist
from blake3 import blake3
from rich.console import Console
from tiny_lm import LanguageModel, Trainer, as_bytes, as_text, stdlib_sources
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import deltavc

TRAINERS, SAMPLERS = 4, 2

LEARNING_RATE = 1e-5
TEXTS = 2
CHUNK = 4
"""Bytes that are written to each of the texts between two safe points."""

PRELOADED = [
    "torch._dynamo",  # which FSDP and DTensor import when they are first used
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "deltavc.kernels.cpu",
    "deltavc.replica.opening_group",
    "deltavc.sharded.opening",
]
"""What all processes import: once, by the server that forks them."""

PATIENCE = 120
"""Seconds without news after which something is wrong."""


@dataclass(frozen=True)
class Settings:
    """spoil: a step that is done wrong first."""

    steps: int = 10
    spoil: int = 5
    warm_up: int = 30
    seconds_per_step: float = 0.8
    shape: dict[str, int] = field(default_factory=dict)


# --- what rank 0 of each tells ---


@dataclass(frozen=True)
class Committed:
    """seconds: until it was committed on all ranks. wrote: bytes of frames that each rank has uploaded for it."""

    version: deltavc.Version
    seconds: float
    wrote: tuple[int, ...]


@dataclass(frozen=True)
class RolledBack:
    version: deltavc.Version
    reason: str


@dataclass(frozen=True)
class Trained:
    """There are no more steps. weights: hash of what the ranks hold, gathered."""

    weights: str


@dataclass(frozen=True)
class Woke:
    version: deltavc.Version
    nbytes: tuple[int, ...]


@dataclass(frozen=True)
class Moved:
    """The sampler has moved. fetched: bytes that each rank has. wrote, text: what the version before wrote."""

    before: deltavc.Version
    version: deltavc.Version
    applied: deltavc.Applied
    fetched: tuple[int, ...]
    wrote: int
    text: str


@dataclass(frozen=True)
class Left:
    """The sampler has ended. weights: hash of what its ranks hold, gathered."""

    version: str
    weights: str


Event = Committed | RolledBack | Trained | Woke | Moved | Left


# --- the trainer: every rank ---


def train(rank: int, url: str, pipe: connection.Connection, settings: Settings) -> None:
    """Commit every step, from all ranks; do one wrong, roll it back when its samples are no good, and go on."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of what nobody writes to in place
    torch.manual_seed(0)
    model = LanguageModel(**settings.shape)
    mesh = init_device_mesh("cpu", (TRAINERS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trainer = Trainer(model, stdlib_sources(), seed=rank)
    trainer.steps(settings.warm_up, learning_rate=3e-3)

    database = None if rank == 0 else "none"  # only rank 0 needs the repository's
    group = dist.group.WORLD
    with deltavc.open(url, db=database) as repo, repo.writer("main", group=group, dtype="bfloat16") as writer:

        def commit(step: int, message: str = "") -> None:
            loss = trainer.held_out_loss()
            begin = time.perf_counter()
            version = writer.commit(model, message, step=step, metrics={"loss": loss})
            seconds = time.perf_counter() - begin
            if rank == 0:
                wrote = tuple(use.nbytes for edge in repo.edges(version.id) for use in edge.packs)
                pipe.send(Committed(version, seconds, wrote))

        def wait() -> None:
            if rank == 0:
                pipe.recv()
            dist.barrier()

        commit(0)
        wait()  # the sampler serves it
        for step in range(1, settings.steps + 1):
            begin = time.monotonic()
            if step == settings.spoil:
                checkpoint = trainer.checkpoint()
                trainer.steps(1, learning_rate=1000 * LEARNING_RATE)
                commit(step, "spoiled: learning rate 1000 times too high")
                wait()  # what the sampler writes with it is no good
                reason = f"step {step} writes nonsense"
                version = writer.rollback(f"step:{step - 1}", reason=reason)
                if rank == 0:
                    pipe.send(RolledBack(version, reason))
                trainer.restore(checkpoint)
                wait()  # the sampler has gone back too
            trainer.steps(1, learning_rate=LEARNING_RATE)
            commit(step)
            time.sleep(max(0.0, begin + settings.seconds_per_step - time.monotonic()))
    weights = gathered(model.state_dict(), torch.bfloat16)
    if rank == 0:
        pipe.send(Trained(weights))


# --- the sampler: every rank ---


def sample(rank: int, url: str, pipe: connection.Connection, settings: Settings) -> None:
    """Write text together, at the newest version, until there is word from above."""
    model = tensor_parallel(LanguageModel(**settings.shape).to(torch.bfloat16).eval())
    held = dict(model.state_dict())
    database = None if rank == 0 else "none"
    with deltavc.open(url, db=database) as repo:
        at = repo.checkout("main", into=held, group=dist.group.WORLD).version  # each rank reads what meets its parts
        with repo.replica_group(held, at=at) as group, group.follow("main", every=0.1) as follower:
            nbytes = on_all(sum(local(tensor).nbytes for tensor in held.values()))
            if rank == 0:
                pipe.send(Woke(repo.version(at), nbytes))
            torch.manual_seed(0)  # the same on both, so that they draw the same bytes
            texts, wrote = as_bytes("\n").repeat(TEXTS, model.context), 0  # of one length: torch works it out once
            while told(rank == 0 and not pipe.poll()):
                before = group.version
                applied = follower.safe_point()  # on both ranks, or none
                if applied is not None:
                    group.verify()  # every live weight, read again, and added up over the ranks
                    fetched = on_all(applied.nbytes)
                    if rank == 0:
                        versions = repo.version(before), repo.version(applied.version)
                        pipe.send(Moved(*versions, applied, fetched, wrote, as_text(texts[0].tolist())))
                    wrote = 0
                texts = model.continued(texts, CHUNK)[:, -model.context :]
                wrote += TEXTS * CHUNK
            weights = gathered(held, torch.bfloat16)
            if rank == 0:
                pipe.send(Left(group.version, weights))


def tensor_parallel(model: LanguageModel) -> LanguageModel:
    """Cut the layers of every block, and the last one, over two ranks, as torch does it; the rest is on both."""
    mesh = init_device_mesh("cpu", (SAMPLERS,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


# --- between ranks ---


def told(word: bool) -> bool:
    """What rank 0 says."""
    flag = torch.tensor([word])
    dist.broadcast(flag, 0)
    return bool(flag)


def on_all(number: int) -> tuple[int, ...]:
    """A number of each rank."""
    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(numbers, torch.tensor([number]))
    return tuple(int(each) for each in numbers)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def gathered(state: Mapping[str, Tensor], dtype: torch.dtype) -> str:
    """The hash of a state that lies on all ranks, whole."""
    return hashed(
        {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in state.items()}, dtype
    )


def hashed(state: Mapping[str, Tensor], dtype: torch.dtype) -> str:
    """The hash of every bit of a state, in order of names."""
    found = blake3()
    for name in sorted(state):
        found.update(name.encode()).update(state[name].to(dtype).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# --- what watches over all ---


class Ranks:
    """Processes of one process group, and a pipe to their rank 0."""

    def __init__(self, work: Any, size: int, url: str, settings: Settings) -> None:
        fresh = multiprocessing.get_context("forkserver")  # which imports torch once, and not six times
        fresh.set_forkserver_preload(PRELOADED)
        self.pipe, theirs = fresh.Pipe()
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # as torchrun has it
        port = self._store.port
        args = [(rank, size, port, work, url, theirs, settings) for rank in range(size)]
        self.processes = [fresh.Process(target=_rank, args=each, daemon=True) for each in args]
        for process in self.processes:
            process.start()
        theirs.close()

    def end(self) -> None:
        """Let those end that are about to, and no others live on."""
        self.pipe.close()
        for process in self.processes:
            process.join(10)
            process.kill()


def _rank(
    rank: int, size: int, port: int, work: Any, url: str, pipe: connection.Connection, settings: Settings
) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    store = dist.TCPStore("127.0.0.1", port, None, False, patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    if rank:
        pipe.close()
    work(rank, url, pipe, settings)
    dist.destroy_process_group()


def run(url: str, console: Console, settings: Settings) -> list[Event]:
    """Let the ranks of both train and write, and end when the sampler is at the last version."""
    deltavc.init(url).close()
    events: list[Event] = []
    trainer = Ranks(train, TRAINERS, url, settings)
    sampler: Ranks | None = None
    head = ""
    trained = False
    try:
        while not (events and isinstance(events[-1], Left)):
            event = heard(trainer, sampler, trained)
            events.append(event)
            tell(console, event)
            match event:
                case Committed() | RolledBack():
                    head = event.version.id
                    if sampler is None:
                        sampler = Ranks(sample, SAMPLERS, url, settings)
                case Woke():
                    trainer.pipe.send("it serves")
                case Trained():
                    trained = True
                case Moved() if event.version.message:  # the step that was spoiled
                    trainer.pipe.send("what it writes is no good")
                case Moved() if event.before.message:
                    trainer.pipe.send("it is back")
            if trained and sampler is not None and isinstance(event, Trained | Moved) and at(events) == head:
                sampler.pipe.send("that is all")
        return events
    finally:
        for ranks in (trainer, sampler):
            if ranks is not None:
                ranks.end()


def heard(trainer: Ranks, sampler: Ranks | None, trained: bool) -> Event:
    """The next that one of them tells."""
    both = [ranks for ranks in (sampler, None if trained else trainer) if ranks is not None]
    ready = connection.wait([ranks.pipe for ranks in both], PATIENCE)
    if not ready:
        raise SystemExit(f"there was no news from trainer and sampler for {PATIENCE} seconds")
    try:
        return ready[0].recv()
    except EOFError:
        raise SystemExit("the trainer or the sampler has failed; it says above why") from None


def at(events: Sequence[Event]) -> str | None:
    """Where the sampler is."""
    return next((event.version.id for event in reversed(events) if isinstance(event, Woke | Moved)), None)


def tell(console: Console, event: Event) -> None:
    style = None
    match event:
        case Committed(version, seconds, wrote):
            style = "red" if version.message else None
            line = f"trainer  step {version.step}: loss {version.metrics['loss']:.3f},"
            line += f" {version.changed_lanes / version.num_lanes:.1%} changed,"
            line += f" ranks wrote {in_kb(wrote)} kB, committed in {seconds * 1e3:.0f} ms"
        case RolledBack(version, reason):
            style, line = "red", f"trainer  back to step {version.step}: {reason}"
        case Trained():
            line = "trainer  done"
        case Woke(version, nbytes):
            style, line = "cyan", f"sampler  step {version.step} checked out, {in_kb(nbytes)} kB of it on its ranks"
        case Moved(before, version, applied, fetched, wrote, text):
            style, line = "cyan", f"sampler  step {before.step} -> {version.step}: ranks fetched {in_kb(fetched)} kB,"
            line += f" pause {applied.pause_seconds * 1e3:.1f} ms, proven."
            line += f" Wrote {wrote:,} bytes before: ...{text[-24:]}"
        case Left():
            style, line = "cyan", "sampler  done"
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def in_kb(sizes: Sequence[int]) -> str:
    return " + ".join(f"{nbytes / 1e3:,.0f}" for nbytes in sizes)


def proof(url: str, events: Sequence[Event]) -> dict[str, str]:
    """Hashes of the last version's weights, by who holds them."""
    trained, left = (next(event for event in events if isinstance(event, kind)) for kind in (Trained, Left))
    with deltavc.open(url) as repo:
        alone = hashed(repo.checkout(left.version), torch.bfloat16)
    return {
        f"the trainer's {TRAINERS} ranks": trained.weights,
        f"the sampler's {SAMPLERS} ranks": left.weights,
        "one process that checks it out": alone,
    }


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="deltavc-sharded-") as name:
        url = f"{name}/repo"
        console.print(f"Starting a trainer of {TRAINERS} ranks, and then a sampler of {SAMPLERS} ...")
        events = run(url, console, Settings())
        hashes = proof(url, events)
    pauses = sorted(event.applied.pause_seconds * 1e3 for event in events if isinstance(event, Moved))
    console.print(
        f"\n{len(pauses)} moves of both ranks together, each proven. Pauses, the waiting for each other included:"
        f" {pauses[len(pauses) // 2]:.1f} ms in the middle, {pauses[-1]:.1f} ms at most.",
        soft_wrap=True,
    )
    console.print("Every bit of the last version, hashed:")
    for who, found in hashes.items():
        console.print(f"  {found[:32]}  {who}", highlight=False)
    if len(set(hashes.values())) > 1:
        raise SystemExit("they hold different weights")
    console.print("The same weights, in three arrangements.")


if __name__ == "__main__":
    main()
