"""Random numbers of a run: where they are, and whether they are drawn where Trainer does not draw them again.

    step ends ─ log, evaluate, save ─ fetch the next batch ─ step begins
               └──── may draw ─────┘ └─── had better not ──┘

Trainer fetches the next batch first when it resumes, and then puts the random numbers back. A data collator that draws
some (random masks, say) draws others then.
"""

from __future__ import annotations

import logging
import random

import numpy as np
import torch

from deltavc.integrations.transformers_state import saved

log = logging.getLogger(__name__)


def random_state(every_device: bool = False) -> bytes:
    """Where the random numbers of this process are, as Trainer saves it: on the CPU, and on CUDA devices.

    Args:
        every_device: of all CUDA devices, as in a process of several; otherwise of the current one.
    """
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all() if every_device else torch.cuda.get_rng_state()
    return saved(state)


def random_file(rank: int, num_processes: int) -> str:
    """What the file of a process's random numbers is called."""
    return f"rng_state_{rank}.pth" if num_processes > 1 else "rng_state.pth"


class Draws:
    """Looks whether fetching a batch draws random numbers, and warns once."""

    def __init__(self) -> None:
        self._before: bytes | None = None
        self._warned = False

    def watch(self) -> None:
        """From here on nothing should be drawn."""
        self._before = None if self._warned else random_state()

    def watch_on(self) -> None:
        """Something was allowed to draw; from here on nothing should."""
        if self._before is not None:
            self.watch()

    def forget(self) -> None:
        """What was drawn is drawn again."""
        self._before = None

    def check(self) -> None:
        """Warn if something was drawn since `watch`."""
        if self._before is not None and self._before != random_state():
            self._warned = True
            log.warning(
                "random numbers are drawn between steps, by the data collator or the data set: Trainer does not make "
                "the same batches again when it resumes, so a resumed run will differ from one that was not stopped"
            )
        self._before = None
