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
        command: a line for the shell, in which they are quoted as the place needs it, inside quotes or not; or a
            program and its arguments.
    """
    facts = {"version": version, "step": "" if step is None else str(step), "path": path}
    if isinstance(command, str):
        filled = _filled(command, facts)
    else:
        filled = shlex.join(_PLACE.sub(lambda found: facts[found[1]], word) for word in command)
    told = {f"DELTAVC_{name.upper()}": value for name, value in facts.items()}
    done = subprocess.run(filled, shell=True, stdin=subprocess.DEVNULL, stdout=_STDERR, env=os.environ | told)
    return done.returncode


def _filled(line: str, facts: dict[str, str]) -> str:
    """A line for the shell, filled in. Keeps track of the quotes that each place stands in."""
    done, quote, at = [], "", 0
    while at < len(line):
        found = _PLACE.match(line, at)
        if found is not None:
            done.append(_quoted(facts[found[1]], quote))
            at = found.end()
            continue
        width = 2 if line[at] == "\\" and quote != "'" else 1
        if line[at] in "'\"" and quote in ("", line[at]):
            quote = "" if quote else line[at]
        done.append(line[at : at + width])
        at += width
    return "".join(done)


def _quoted(value: str, quote: str) -> str:
    """A value as it stands in a shell's line, outside quotes or inside of that kind."""
    if quote == "'":
        return value.replace("'", "'\"'\"'")
    if quote == '"':
        return re.sub(r'([\\"$`])', r"\\\1", value)
    return shlex.quote(value)
