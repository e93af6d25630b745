"""Running a command for a version that was put into a directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence

_PLACE = re.compile(r"\{(version|step|path)\}")
_STDERR = 2  # stdout is for results


def run_for(command: str | Sequence[str], version: str, step: int | None, path: str) -> int:
    """Run a command that is told of a version: its exit code, or -N if signal N ended it.

    {version}, {step} and {path} in it are filled in, and DELTAVC_VERSION, DELTAVC_STEP and DELTAVC_PATH are in its
    environment. What it prints goes to stderr; there is nothing for it to read.

    Args:
        command: a line for the shell, in which they are quoted for it; or a program and its arguments.
    """
    facts = {"version": version, "step": "" if step is None else str(step), "path": path}
    if isinstance(command, str):
        filled = _PLACE.sub(lambda found: shlex.quote(facts[found[1]]), command)
    else:
        filled = shlex.join(_PLACE.sub(lambda found: facts[found[1]], word) for word in command)
    told = {f"DELTAVC_{name.upper()}": value for name, value in facts.items()}
    done = subprocess.run(filled, shell=True, stdin=subprocess.DEVNULL, stdout=_STDERR, env=os.environ | told)
    return done.returncode
