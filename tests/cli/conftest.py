"""A working folder with a few checkpoints in it, and a way to run commands there."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from deltavc.cli.main import main

from tests.cli.samples import write_checkpoints


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    write_checkpoints(folder)
    return folder


@pytest.fixture
def folder(tmp_path, checkpoints, monkeypatch):
    """An empty working folder, in which step1 ... step4 are at hand, and an environment that names nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("DELTAVC_REPO", "DELTAVC_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    for step in checkpoints.iterdir():
        (tmp_path / step.name).symlink_to(step)
    return tmp_path


@pytest.fixture
def run(folder):
    """Run a command line; `code` is what it has to end with. Gives stdout, stderr and stdout's JSON."""

    def run(*args, code=0):
        result = CliRunner().invoke(main, [str(arg) for arg in args])
        assert result.exit_code == code, result.output
        found = json.loads(result.stdout) if "--json" in args and result.stdout else None
        return SimpleNamespace(stdout=result.stdout, stderr=result.stderr, json=found)

    return run


@pytest.fixture
def project(run, folder):
    """A repository at runs/demo with steps 1 to 3 on main."""
    run("init", "runs/demo")
    for step in range(1, 4):
        run("commit", f"step{step}", "-m", f"Step {step}", "--step", step, "--metric", f"loss={1 / step}")
    return folder / "runs" / "demo"
