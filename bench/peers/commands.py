"""Programs that are compared: whether they are there, and the memory that they take."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

POLL_SECONDS = 0.005

peak_nbytes = 0
"""The most memory that one command took since this was last set to 0."""


def installed(program: str) -> bool:
    return shutil.which(program) is not None


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a program to its end, and note its memory. Raises RuntimeError with what it said if it fails."""
    global peak_nbytes
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
        while True:
            peak_nbytes = max(peak_nbytes, most_held(process.pid))
            try:
                process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {said.read().decode()[-2000:]}")


def most_held(pid: int | str) -> int:
    """Linux's count of the most memory a process held; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:"), 0)
