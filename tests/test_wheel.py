"""The wheel works away from the checkout: the library, its command and its migrations are in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A directory with what the wheel installs, and nothing of the checkout."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    for name in ("deltavc", "cli", "migrations"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", work, source], check=True)
    (wheel,) = work.glob("deltavc-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", work / "site", wheel], check=True)
    shutil.rmtree(source)
    return work / "site"


def run(installed, tmp_path, *command):
    env = {**os.environ, "PYTHONPATH": str(installed), "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_in_the_wheel(installed):
    for folder, package in (("deltavc", "deltavc"), ("cli", "deltavc/cli"), ("migrations", "deltavc/migrations")):
        for path in (ROOT / folder).rglob("*.py"):
            assert (installed / package / path.relative_to(ROOT / folder)).is_file()
    assert (installed / "deltavc" / "py.typed").is_file()


@pytest.mark.long
def test_a_repository_is_made_through_its_migrations(installed, tmp_path):
    script = """
import sys
import deltavc, deltavc.cli, deltavc.migrations, torch
from deltavc.lineage import schema
from deltavc.lineage.database import open_database
assert all(m.__file__.startswith(sys.argv[1]) for m in (deltavc, deltavc.cli, deltavc.migrations)), deltavc.__file__
db = "sqlite:///upgraded.db"
print(*schema.upgrade(open_database(db)))
with deltavc.init("repo", db=db) as repo:
    repo.commit({"w": torch.arange(3.0)}, step=1)
    print(repo.checkout("step:1")["w"].tolist())
print(*schema.upgrade(open_database(db)))
"""
    assert run(installed, tmp_path, "-c", script, str(installed)) == "None 0001\n[0.0, 1.0, 2.0]\n0001 0001\n"


def test_the_command_runs(installed, tmp_path):
    command = str(installed / "bin" / "deltavc")
    run(installed, tmp_path, command, "init", "repo")
    assert (tmp_path / "repo" / "deltavc.json").is_file()
    assert run(installed, tmp_path, command, "--version").startswith("deltavc ")
