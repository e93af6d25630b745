"""Random numbers of a run: where they are, and whether they are drawn where Trainer does not draw them again.

    epoch begins ─ shuffle ─ ... step ends ─ log, evaluate, save ─ fetch the next batch ─ step begins
         │                                   └──── may draw ─────┘ └─── had better not ──┘     │
    put back by the callback                                                         put back by Trainer

When Trainer resumes within an epoch it shuffles first, fetches the next batch, and then puts the random numbers back.
So that shuffling comes out the same whatever it draws from, they are put back at the epoch's beginning, too. A data
collator that draws some (random masks, say) still draws others then.
"""

from __future__ import annotations

import io
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltavc.integrations.transformers_ranks import num_processes, of_all, rank
from deltavc.integrations.transformers_state import saved

log = logging.getLogger(__name__)

_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]


class RandomNumbers:
    """Those of this process: of Python, of NumPy, and of torch on the CPU and on CUDA devices.

    every_device: whether all CUDA devices are meant, as in a process of several, or the current one.
    """

    def __init__(self) -> None:
        self.every_device = False
        self._epoch = b""
        self._before: bytes | None = None
        self._warned = False

    def epoch_begins(self, resumed: Path | None) -> None:
        """Remember where they are, once they are where they were: as the checkpoint tells that a run resumes from."""
        self._before = None
        if resumed is not None:
            file = resumed / _epoch_file(rank(), num_processes())
            if file.exists():  # there were as many processes then
                _put_back(file.read_bytes())
        self._epoch = self._state()

    def files(self) -> dict[str, bytes]:
        """Where those of all processes are, and were when the epoch began, as Trainer saves them. All call it."""
        states = of_all((self._state(), self._epoch))
        now = {_file(rank, len(states)): state for rank, (state, _) in enumerate(states)}
        return now | {_epoch_file(rank, len(states)): state for rank, (_, state) in enumerate(states)}

    def watch(self) -> None:
        """From here on nothing should draw."""
        self._before = None if self._warned else self._state()

    def watch_on(self) -> None:
        """Something was allowed to draw; from here on nothing should."""
        if self._before is not None:
            self.watch()

    def check(self) -> None:
        """Warn, once, if something has drawn since `watch`."""
        if self._before is not None and self._before != self._state():
            self._warned = True
            log.warning(
                "random numbers are drawn between steps, by the data collator or the data set: Trainer does not make "
                "the same batches again when it resumes, so a resumed run will differ from one that was not stopped"
            )
        self._before = None

    def _state(self) -> bytes:
        state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all() if self.every_device else torch.cuda.get_rng_state()
        return saved(state)


def _put_back(state: bytes) -> None:
    # NumPy's are an array, which takes these names to be read; none of them can do anything else.
    with torch.serialization.safe_globals([np.ndarray, np.dtype, type(np.dtype(np.uint32)), _RECONSTRUCT]):
        found = torch.load(io.BytesIO(state), weights_only=True)
    random.setstate(found["python"])
    np.random.set_state(found["numpy"])
    torch.random.set_rng_state(found["cpu"])
    cuda = found.get("cuda")
    if isinstance(cuda, torch.Tensor):
        torch.cuda.set_rng_state(cuda)
    elif cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


def _file(rank: int, num_processes: int) -> str:
    return f"rng_state_{rank}.pth" if num_processes > 1 else "rng_state.pth"


def _epoch_file(rank: int, num_processes: int) -> str:
    return f"epoch_{_file(rank, num_processes)}"
