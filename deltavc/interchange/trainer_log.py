"""What a Hugging Face Trainer logged at a step, from its trainer_state.json.

    {"global_step": 20, "log_history": [{"step": 20, "loss": 0.7, "grad_norm": 1.1, "epoch": 0.4}, ...]}

A step may have several entries, one for training and one for evaluation; their numbers are put together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltavc.errors import BadCheckpoint
from deltavc.lineage.records import MAX_METRIC_NAME

STATE = "trainer_state.json"
MAX_BYTES = 256 << 20
"""Bytes of a log that is read: a million entries."""


def metrics_at(folder: Path, step: int) -> dict[str, float]:
    """The numbers logged at a step, by the log in this folder; none where there is no log.

    Raises:
        BadCheckpoint: there is one, and it cannot be read.
    """
    path = folder / STATE
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadCheckpoint(str(path), f"has more than {MAX_BYTES} bytes")
        state = json.loads(path.read_bytes())
    except OSError as error:
        raise BadCheckpoint(str(path), f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(str(path), f"is not JSON: {str(error)[:200]}") from error
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise BadCheckpoint(str(path), "has no log_history: it is not the state of a Trainer")
    found: dict[str, float] = {}
    for entry in history:
        if isinstance(entry, dict) and entry.get("step") == step:
            found.update((name, value) for name, value in entry.items() if name != "step" and _is_metric(name, value))
    return found


def _is_metric(name: str, value: Any) -> bool:
    if not 0 < len(name) <= MAX_METRIC_NAME:
        return False
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)
