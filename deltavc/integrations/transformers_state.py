"""What a trainer needs beside the weights to go on as if nothing had happened, in files that Trainer itself reads.

    optimizer.pt  scheduler.pt  scaler.pt   moments, learning rates, the loss scale
    rng_state.pth  epoch_rng_state.pth      random numbers of Python, NumPy and torch, before the next batch is used and
                                            when the epoch began; with several processes rng_state_<rank>.pth
    trainer_state.json                      the step, the epoch, what was logged
    masters.pt                              the weights as they are trained, where versions hold them in another dtype
    config.json, tokenizer...               with every version, so that from_pretrained takes what is checked out

They have the names that a checkpoint of Trainer has: a version that keeps them, checked out into a directory, is one.
Nothing that is read back is executed: torch.load only with weights_only=True.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor

from deltavc.errors import WrongWeights
from deltavc.identify import state_fingerprints
from deltavc.integrations.transformers_start import holds
from deltavc.lanes import dtype_name
from deltavc.lineage.records import MAX_METRIC_NAME
from deltavc.weights.describe import CASTABLE, cast_dtype, describe
from deltavc.weights.output import write_checkpoint
from deltavc.weights.state import open_state

if TYPE_CHECKING:
    from deltavc.repo import Repo
    from deltavc.version import Version

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
TRAINER = "trainer_state.json"
MASTERS = "masters.pt"

NEEDED = frozenset((OPTIMIZER, SCHEDULER, TRAINER))
"""What a version keeps that a run can resume from. Trainer would begin anew, silently, with what is not there."""


def captured(
    state: Any, model: torch.nn.Module, optimizer: Any, scheduler: Any, dtype: torch.dtype | str | None
) -> dict[str, bytes]:
    """The state of a run at this moment as files, without random numbers.

    Args:
        state: a `TrainerState`. optimizer, scheduler: as Trainer gives them to callbacks.
        dtype: what floating tensors are cast to when they are committed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a scheduler is saved without its optimizer: it is not
        files = {OPTIMIZER: saved(optimizer.state_dict()), SCHEDULER: saved(scheduler.state_dict())}
    scaler = getattr(optimizer, "scaler", None)
    if scaler is not None:
        files[SCALER] = saved(scaler.state_dict())
    masters = _masters(model, dtype)
    if masters:
        files[MASTERS] = saved(masters)
    told = json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True, default=_number)
    files[TRAINER] = f"{told}\n".encode()
    return files


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """What of a trainer's logs is a metric: numbers, and tensors of one."""
    found = {}
    for name, value in logs.items():
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(number, Real) and 1 <= len(name) <= MAX_METRIC_NAME:
            found[name] = float(number)
    return found


def described(model: torch.nn.Module, processing_class: Any) -> dict[str, bytes]:
    """The small files that make weights a model again: config, generation settings, tokenizer; as far as there are."""
    parts: tuple[Any, ...] = (getattr(model, "config", None), getattr(model, "generation_config", None))
    with tempfile.TemporaryDirectory() as folder:
        for part in (*parts, processing_class):
            if hasattr(part, "save_pretrained"):
                part.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def restore(repo: Repo, version: Version, model: torch.nn.Module, optimizer: Any, scheduler: Any) -> None:
    """Bring a live model, its optimizer and its schedule to a version that keeps their state, in place.

    Random numbers and the place in the data stay as they are.

    Raises:
        WrongWeights: the weights as trained are not those of the version.
        NoPath, Corruption, StoreError: the version, or a file of it, cannot be read.
    """
    weights = _as_trained(repo, version)
    if weights is None:
        repo.checkout(version.id, into=model)
    else:
        model.load_state_dict(weights)
    optimizer.load_state_dict(_loaded(repo, version, OPTIMIZER))
    scheduler.load_state_dict(_loaded(repo, version, SCHEDULER))
    if SCALER in version.files and getattr(optimizer, "scaler", None) is not None:
        optimizer.scaler.load_state_dict(_loaded(repo, version, SCALER))


def write(repo: Repo, version: Version, path: Path) -> None:
    """Write a version that keeps a run's state as a checkpoint that Trainer resumes from.

    Raises:
        BadCheckpoint: `path` is not an empty or new directory. Others as `restore`.
    """
    weights = _as_trained(repo, version)
    if weights is None:
        repo.checkout(version.id, path=path)
        return
    files = {name: _copier(repo, version, name) for name in version.files if name != MASTERS}
    write_checkpoint(path, weights.items(), describe(weights), None, files)


def holds_as_trained(repo: Repo, version: Version, model: torch.nn.Module) -> bool:
    """Whether a live model, which is a version when it is cast as that was, is the version before it was cast, too."""
    if MASTERS not in version.files:
        return True
    masters, live = _loaded(repo, version, MASTERS), model.state_dict()
    if not masters.keys() <= live.keys():
        return False
    here = open_state({name: live[name] for name in masters})
    return state_fingerprints(open_state(masters)) == state_fingerprints(here)


def saved(value: Any) -> bytes:
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _masters(model: torch.nn.Module, dtype: torch.dtype | str | None) -> dict[str, Tensor]:
    """The tensors that a commit casts, as they are."""
    target = cast_dtype(dtype)
    if target is None:
        return {}
    stored = {name: (tensor, dtype_name(tensor.dtype, name)) for name, tensor in model.state_dict().items()}
    return {name: tensor for name, (tensor, is_) in stored.items() if is_ in CASTABLE and is_ != target}


def _number(value: Any) -> Any:
    """What was logged as a tensor, or as a number of NumPy's. Raises TypeError for what is neither."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"a {type(value).__name__} was logged, or is in the trainer's state, which is no number")
    return value.tolist()


def _as_trained(repo: Repo, version: Version) -> dict[str, Tensor] | None:
    """The weights as trained, where a version holds them in another dtype; None where it holds them itself."""
    if MASTERS not in version.files:
        return None
    masters = _loaded(repo, version, MASTERS)
    dtype = next(spec["dtype"] for spec in repo.tensors(version.id) if spec["name"] in masters)
    weights = {**repo.checkout(version.id), **masters}
    if not holds(repo, weights, version, dtype):
        raise WrongWeights(version.id, ())
    return weights


def _loaded(repo: Repo, version: Version, name: str) -> Any:
    content = io.BytesIO(repo.read_file(version.id, name))
    return torch.load(content, map_location="cpu", weights_only=True)


def _copier(repo: Repo, version: Version, name: str) -> Callable[[BinaryIO], object]:
    return lambda out: out.write(repo.read_file(version.id, name))
