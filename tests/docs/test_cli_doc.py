"""The examples of docs/cli.md are run, and print what the page shows, but for ids, numbers, times and names."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from deltavc.cli.main import COMMANDS

from tests.cli.samples import write_checkpoints

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def examples():
    """Every command of the page, in order, with the lines that it is shown to print."""
    found = []
    for block in BLOCKS:
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def general(line, folder):
    """A line without what differs from run to run."""
    line = line.replace(str(folder), "/data/me").rstrip()
    line = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", line)
    line = re.sub(r"\d[\d.,]*( [kM]?B\b)?", "N", line)
    line = re.sub(r"\S+@[\w.-]+", "WHO", line)
    return re.sub(r" +", " ", line)


@pytest.fixture
def folder(tmp_path):
    write_checkpoints(tmp_path)
    return tmp_path


def test_the_examples_print_what_the_page_shows(folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELTAVC_")}
    environment["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), environment["PATH"]])
    for command, shown in examples():
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        printed = (done.stdout + done.stderr).splitlines()
        assert [general(line, folder) for line in printed] == [general(line, folder) for line in shown], command


def test_every_command_has_an_example():
    run = {name for command, _ in examples() for name in re.findall(r"\bdeltavc (\w+)", command)}
    assert run >= set(COMMANDS)
