"""Checkpoint ids: what the `checkpoint_id` of `dcp.save` and `dcp.load` means to a repository.

"step-120", "runs/7/step_120", "120"    the step 120: of the version when saved, of the branch when loaded
anything else                           the version's message when saved, a ref when loaded
"""

from __future__ import annotations

import os
import re

_STEP = re.compile(r"(?:.*/)?(?:(?:global_)?step[-_:=]?)?(\d{1,15})/?")


def step_of(checkpoint_id: str | os.PathLike[str] | int) -> int | None:
    """The step that a checkpoint id names, if it does: its last part is a number, or "step" and a number."""
    found = _STEP.fullmatch(text_of(checkpoint_id))
    return None if found is None else int(found[1])


def text_of(checkpoint_id: str | os.PathLike[str] | int) -> str:
    """A checkpoint id as text."""
    return str(os.fspath(checkpoint_id) if isinstance(checkpoint_id, os.PathLike) else checkpoint_id)
