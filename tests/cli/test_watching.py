"""Watching a run: versions as they land, layers compared, plots."""

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from deltavc.cli import output

COMMAND = Path(sysconfig.get_path("scripts")) / "deltavc"


def test_layers_are_summed_up(run, project):
    out = run("diff", "step:1", "step:3", "--by-layer").stdout.splitlines()
    assert out[0].split() == ["layer", "tensors", "changed", "of", "share", "largest", "step"]
    assert [line.split()[:5] for line in out[1:]] == [
        ["layer", "1", "of", "2", "6"],
        ["total", "1", "of", "2", "6"],
    ]
    found = run("diff", "step:1", "step:3", "--by-layer", "--json").json
    assert [(layer["name"], layer["num_changed"], layer["changed_elements"]) for layer in found["layers"]] == [
        ("layer", 1, 6)
    ]
    assert found["total"]["changed_elements"] == 6


def test_layers_that_are_equal_are_a_line_unless_all_are_asked_for(run, project):
    assert "1 layer is unchanged" in run("diff", "main", "main", "--by-layer").stdout
    assert "0 of 2" in run("diff", "main", "main", "--by-layer", "--all").stdout.splitlines()[1]


def test_a_number_with_a_dash_is_a_limit(run, project):
    assert run("log", "--oneline", "-2").stdout == run("log", "--oneline", "-n", "2").stdout
    assert run("log", "-0").stdout == ""
    assert "not in the range" in run("log", "-n", "-1", code=2).stderr


@pytest.mark.parametrize("lines", [1, 1000])
def test_a_log_that_is_printed_bit_by_bit_is_the_same(run, project, monkeypatch, lines):
    whole = [run("log").stdout, run("log", "--graph").stdout]
    monkeypatch.setattr(output, "_LINES", lines)
    assert [run("log").stdout, run("log", "--graph").stdout] == whole
    for args in ([], ["-1"], ["-0"]):
        told = run("log", *args, "--json")
        assert told.stdout == json.dumps(told.json, indent=2) + "\n"


@contextlib.contextmanager
def following(*args):
    """`log --follow` as a process; whatever happens in the block, it is gone after it."""
    command = [COMMAND, "log", "--follow", "--every", "0.02s", *map(str, args)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_follow_prints_versions_as_they_land_and_rollbacks_as_such(run, project):
    with following("--oneline", "-n", 2) as process:
        assert process.stdout.readline().endswith("Step 2\n")
        assert process.stdout.readline().endswith("Step 3\n")
        was = run("show", "main", "--json").json["id"][:12]
        run("rollback", "main", "--to", "step:1", "--reason", "loss went\nup")
        line = process.stdout.readline()
        assert line.startswith("main rolled back to ")
        assert f"step 1  Step 1, was at {was}  (" in line
        assert line.endswith(": loss went\\nup)\n")
        run("commit", "step4", "-m", "Step 4", "--step", 4, "--metric", "loss=0.1")
        assert "step 4  loss=0.1" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


def test_follow_prints_json_lines_and_needs_no_database(run, project):
    with following("--json", "--db", "none", "-1") as process:
        assert json.loads(process.stdout.readline())["version"]["step"] == 3
        run("branch", "-d", "main")
        assert json.loads(process.stdout.readline()) | {"who": "", "when": "", "old": ""} == {
            "kind": "deleted", "branch": "main", "version": None, "old": "", "who": "", "when": "", "why": "deleted"
        }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["mian"], 1, "there is no branch of this name"),
        (["step:1"], 1, "cannot be the name of a branch"),
        (["--graph"], 2, "leave out --graph"),
        (["--every", "0s"], 2, "more than no time at all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_followed_is_refused(run, project, args, code, says):
    assert says in run("log", "--follow", *args, code=code).stderr
