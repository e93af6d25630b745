"""Trainer with several processes that have copies of the model: the first commits, and all go on and back together."""

import io
import signal
import subprocess
import sys

import pytest
import torch

import deltavc
from tests.docs.pages import ROOT
from tests.states import same

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # six times two processes import everything


def launch(folder, killed=0, spoiled=0):
    """Run the script on two processes, as torchrun does."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = ["-m", "tests.integrations.trainers", str(folder), str(killed), str(spoiled)]
    done = subprocess.run([*launcher, *script], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert killed or done.returncode == 0, done.stderr
    assert not killed or str(-signal.SIGKILL) in done.stderr
    return deltavc.open(folder / "repo")


def fingerprints(repo):
    return [(version.step, version.fingerprint) for version in repo.log()]


def optimizer_of(repo):
    state = torch.load(io.BytesIO(repo.read_file("main", "optimizer.pt")), weights_only=True)["state"]
    return {f"{place}.{name}": tensor for place, values in state.items() for name, tensor in values.items()}


@pytest.mark.parametrize("spoiled", [0, 6], ids=["good", "rolled-back"])
def test_processes_that_were_killed_go_on_as_if_they_never_were(tmp_path, spoiled):
    with launch(tmp_path / "never", spoiled=spoiled) as never:
        launch(tmp_path / "once", killed=8, spoiled=spoiled).close()
        with launch(tmp_path / "once", spoiled=spoiled) as once:
            assert fingerprints(once) == fingerprints(never)
            assert same(optimizer_of(once), optimizer_of(never))
            steps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
            assert [version.step for version in once.log()] == [
                step for step in steps[::-1] if not (spoiled and 4 < step <= spoiled)
            ]
            assert {"rng_state_0.pth", "rng_state_1.pth"} <= once.version("main").files.keys()
