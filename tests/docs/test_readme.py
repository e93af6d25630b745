"""The README keeps its word: the example is short and does what it says, the commands after it run, the tree is so.

That its Python runs and its links lead somewhere is tested with the other pages, in test_docs.
"""

import os
import re
import subprocess
import sysconfig

import pytest
import torch
from safetensors.torch import load_file

import deltavc
from tests.docs.pages import ROOT, blocks

README = ROOT / "README.md"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The folder in which the README's Python ran, and the names that it left."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for _, code in blocks(README, "python"):
        exec(compile(code, README, "exec"), names)
    yield tmp_path, names
    names["repo"].close()


def test_the_two_commands_stand_before_everything_else_and_exist():
    before_the_example = README.read_text().partition("```")[0]
    commands = re.findall(r"^    make (\S+)", before_the_example, re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)


def test_the_example_has_ten_lines_at_most():
    ((_, code),) = blocks(README, "python")
    assert len(code.splitlines()) <= 10


def test_the_example_does_what_its_comments_say(example):
    folder, names = example
    repo, model = names["repo"], names["model"]
    assert [version.step for version in repo.log("main")] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert torch.equal(model.weight, repo.checkout("step:7")["weight"])
    assert list(names["state"]) == ["bias", "weight"]
    assert names["state"].version == repo.resolve("step:5")
    (file,) = (folder / "out").glob("*.safetensors")
    assert torch.equal(load_file(file)["weight"], model.weight)


def test_the_commands_run_after_it(example):
    folder, _ = example
    ((_, script),) = blocks(README, "sh")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELTAVC_")}
    environment["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), environment["PATH"]])
    environment["XDG_STATE_HOME"] = str(folder / "state")
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with deltavc.open(folder / "runs" / "demo") as repo:
        assert repo.tags() == {"good": repo.resolve("step:7")}
        assert repo.reflog()[0].why == "no better"
        again = repo.resolve("main@{1}")
        assert repo.version(again).message == "step 5 again"
        assert {version.step for version in repo.identify(folder / "step5")} == {5, 8}


def test_the_tree_is_as_drawn():
    (tree,) = (text for _, text in blocks(README, "text") if "cli/" in text)
    folders = re.findall(r"(?:^|  )([a-z]+)/ ", tree)
    modules = re.findall(r"^  ([a-z]+)/? ", tree, re.MULTILINE)
    assert {"deltavc", "cli", "migrations", "docs", "examples", "tests", "bench"} <= set(folders)
    assert all((ROOT / name).is_dir() or (ROOT / "deltavc" / name).is_dir() for name in folders)
    assert all((ROOT / "deltavc" / name).is_dir() or (ROOT / "deltavc" / f"{name}.py").is_file() for name in modules)
