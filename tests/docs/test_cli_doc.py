"""The examples of docs/cli.md are run, and print what the page shows, but for ids, numbers, times and names.

Those that a shell has work to do for are run by one. The others run here, which saves the start of a process for each.
"""

import os
import re
import sysconfig

import pytest
from deltavc.cli.main import COMMANDS

from tests.cli.samples import write_checkpoints
from tests.docs.pages import ROOT, answer, general, steps

EXAMPLES = [(command, lines) for _, command, lines in steps(ROOT / "docs/cli.md")]
"""Every command of the page, in order, with the lines that it is shown to print."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_checkpoints(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DELTAVC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    return tmp_path


def test_the_examples_print_what_the_page_shows(folder):
    for command, shown in EXAMPLES:
        code, out, err = answer(command)
        assert code == 0, (command, err)
        printed = (out + err).splitlines()
        assert [general(line, folder) for line in printed] == [general(line, folder) for line in shown], command


def test_every_command_has_an_example():
    run = {name for command, _ in EXAMPLES for name in re.findall(r"\bdeltavc (\w+)", command)}
    assert run >= set(COMMANDS)
