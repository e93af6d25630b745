"""Repositories made to harm: each ends in an error of ours, with little memory, and writes nothing where it should not.

`tests/hostile.py` has the objects, and the process that reads them.
"""

import json
import subprocess
import sys

import pytest
import torch

import deltavc
from deltavc import errors
from deltavc.errors import BadCheckpoint, DeltavcError
from deltavc.layout import TensorSpec
from deltavc.lineage.records import FileRef
from deltavc.upkeep.fsck_report import KINDS
from tests.hostile import CASES, LIMIT, Forger

ERRORS = {error.kind for error in vars(errors).values() if isinstance(error, type) and "kind" in vars(error)}


@pytest.fixture(scope="module")
def told():
    """What became of each case, in one process that reads them all."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile"], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_object_ends_in_an_error_before_it_costs_much(told, name):
    found = told[name]
    assert "failure" not in found, found["failure"]
    assert found["ends"]["checkout"] in ERRORS - {"error"}
    assert found["ends"]["fsck"] in ERRORS | KINDS.keys()
    assert found["nbytes"] < LIMIT


# --- names that become paths, or would ---

UNFIT = {
    "leads out": "../outside",
    "leads out later": "a/../../outside",
    "absolute": "/tmp/outside",
    "hidden": ".git/hooks/post-checkout",
    "hidden later": "a/.ssh/authorized_keys",
    "with NUL": "a\0b",
    "with a line break": "a\nb",
    "with a backslash": "..\\outside",
    "of a drive": "C:outside",
    "of a stream": "file:stream",
    "empty": "",
    "with an empty part": "a//b",
    "a folder": "a/",
    "too long": "a" * 256,
    "much too long": "/".join(["a" * 100] * 11),
    "weights": "model.safetensors",
    "other weights": "another.safetensors",
    "an index": "model.safetensors.index.json",
}


def files_of(root, names):
    """A version of one tensor that keeps files under these names."""
    to = Forger(root)
    layout = to.layout(TensorSpec("w", "int8", (0,)))
    kept = {}
    for number, name in enumerate(names):
        content = b"%d" % number
        digest = deltavc.canonical.content_id(content)
        kept[name] = FileRef(f"{digest}-{'0' * 32}", len(content))
        to.put(kept[name].key, content)
    to.snapshot(to.version(layout, files=kept), layout)


def everything(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("name", UNFIT.values(), ids=UNFIT)
def test_a_file_that_could_be_written_elsewhere_or_harm_is_not_written(tmp_path, name):
    files_of(tmp_path / "repository", [name])
    before = everything(tmp_path)
    with deltavc.open(tmp_path / "repository", db="sqlite://") as repo:
        with pytest.raises(BadCheckpoint):
            repo.checkout("main", path=tmp_path / "out")
        assert repo.read_file("main", name) == b"0"  # its bytes can be had, under whatever name the caller gives
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "names",
    [("a", "a/b"), ("a/b", "a/b/c"), ("Config.json", "config.json"), ("é", "e\u0301"), ("aux", "NUL.txt", "x. ")],
    ids=["a file as a folder", "a file as a folder, deeper", "case", "composition", "names of Windows"],
)
def test_names_that_meet_are_all_written_or_none(tmp_path, names):
    """File systems that tell them apart keep them; others refuse the second, and then nothing is written."""
    files_of(tmp_path / "repository", names)
    with deltavc.open(tmp_path / "repository", db="sqlite://") as repo:
        try:
            repo.checkout("main", path=tmp_path / "out")
        except BadCheckpoint:
            assert not (tmp_path / "out").exists()
        else:
            assert [(tmp_path / "out" / name).read_bytes() for name in names] == [
                b"%d" % number for number in range(len(names))
            ]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b", "C:\\x", "\x1b[2J", "a\nb", "." * 999])
def test_names_of_tensors_become_no_paths(tmp_path, name):
    with deltavc.init(tmp_path / "repository") as repo:
        repo.commit({name: torch.ones(3)})
        repo.checkout("main", path=tmp_path / "out")
    assert everything(tmp_path / "out") == {"model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == {"repository", "out"}


SOURCES = ["../m.safetensors", "/tmp/m.safetensors", "a/m.safetensors", ".m.safetensors", "m\0.safetensors", "m.bin"]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("place", ["files", "index"])
def test_weights_are_written_under_no_name_that_leads_elsewhere(tmp_path, name, place):
    to = Forger(tmp_path / "repository")
    layout = to.layout(TensorSpec("w", "int8", (0,)))
    source = {"single": False, "index": None, "tensors": [0], "files": [{"name": "m.safetensors", "metadata": None}]}
    if place == "files":
        source["files"][0]["name"] = name
    else:
        source["index"] = {"name": name.replace("m.safetensors", "m.safetensors.index.json"), "metadata": {}}
    to.snapshot(to.version(layout, source=source), layout)
    before = everything(tmp_path)
    with deltavc.open(tmp_path / "repository", db="sqlite://") as repo, pytest.raises(BadCheckpoint):
        repo.checkout("main", path=tmp_path / "out")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("key", ["metrics", "meta"])
def test_what_a_version_says_cannot_command_a_terminal(tmp_path, key):
    """The command line prints it in one line each, with control characters spelled out."""
    from click.testing import CliRunner
    from deltavc.cli.main import main

    with deltavc.init(tmp_path / "repository") as repo:
        told = {"metrics": {"\x1b[2J": 1}} if key == "metrics" else {"meta": {"\x1b]0;title\x07": "\x1b[2J\n"}}
        repo.commit({"\x1b[2J": torch.ones(2)}, message="\x1b[31mred\x07", author="\x1b[2J", **told)
    for command in (["log"], ["show", "--tensors"], ["audit"], ["verify"], ["fsck"]):
        result = CliRunner().invoke(main, ["--repo", str(tmp_path / "repository"), *command])
        assert result.exit_code == 0, result.output
        assert not {"\x1b", "\x07"} & set(result.output)


def test_a_kept_file_that_is_larger_than_told_is_not_read_to_its_end(tmp_path):
    files_of(tmp_path / "repository", ["a"])
    (path,) = (tmp_path / "repository" / "files").rglob("*-*")
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with deltavc.open(tmp_path / "repository", db="sqlite://") as repo:
        with pytest.raises(DeltavcError, match="files/"):
            repo.read_file("main", "a")
        with pytest.raises(DeltavcError, match="files/"):
            repo.checkout("main", path=tmp_path / "out")
        assert [problem.kind for problem in repo.fsck(full=True).problems] == ["damaged_file"]
