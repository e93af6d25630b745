"""deltavc follow: a line for each move, a command after it, and a whole directory however it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from safetensors.torch import load_file

import deltavc
from tests.states import same

COMMAND = Path(sysconfig.get_path("scripts")) / "deltavc"


def version_of(folder):
    return json.loads((folder / "VERSION").read_text())["version"]


@contextlib.contextmanager
def following(*args):
    """The command as a process in the working folder; what is yielded reads its next line."""
    command = [COMMAND, "follow", "main", "--into", "serving", "--every", "0.02s", *map(str, args)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ctrl_c(process):
    """As a terminal does it: to the command and to what it started."""
    os.killpg(process.pid, signal.SIGINT)


def test_once_moves_once_and_says_what_it_took(run, project, folder):
    line = run("follow", "main", "--into", "serving", "--once").stdout
    version = run("show", "main", "--json").json["id"]
    assert line.startswith(f"{version[:12]}  step 3  ")
    assert "2 files written" in line
    assert line.count("\n") == 1
    assert version_of(folder / "serving") == version
    assert same(load_file("serving/model.safetensors"), load_file("step3/model.safetensors"))
    again = run("follow", "main", "--into", "serving", "--once")
    assert again.stdout == ""
    assert again.stderr == f"serving is at {version[:12]} already\n"


def test_json_is_one_object_a_line(run, project, folder):
    told = run("follow", "step:2", "--into", "serving", "--once", "--json")
    assert told.stdout.count("\n") == 1
    assert told.json["version"] == run("show", "step:2", "--json").json["id"]
    assert told.json["step"] == 2
    assert told.json["fetched_bytes"] > 0
    assert told.json["seconds"] > 0
    assert told.json["written"] == ["model.safetensors", "config.json"]
    assert told.json["before"] is None
    assert told.json["path"] == str(folder / "serving")


def test_following_tells_every_move_and_ctrl_c_ends_it_with_the_directory_whole(run, project, folder):
    first = run("show", "main", "--json").json["id"]
    with following("--json") as process:
        assert json.loads(process.stdout.readline())["version"] == first
        run("commit", "step4", "--step", 4)
        moved = json.loads(process.stdout.readline())
        assert (moved["step"], moved["before"], moved["written"]) == (4, first, ["model.safetensors"])
        run("rollback", "main", "--to", "step:2", "--reason", "a test")
        assert json.loads(process.stdout.readline())["step"] == 2
        ctrl_c(process)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "following main into serving; Ctrl-C ends it" in err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not (folder / "serving" / "MOVING").exists()
    assert version_of(folder / "serving") == run("show", "main", "--json").json["id"]
    assert same(load_file("serving/model.safetensors"), load_file("step2/model.safetensors"))


def test_a_command_is_run_after_each_move_and_told_where_and_what(run, project, folder):
    script = 'echo {version} {step} {path} $DELTAVC_VERSION $DELTAVC_STEP "$DELTAVC_PATH" >> told'
    odd = folder / "it's; $HOME {step}"
    for step in (1, 2):
        run("follow", f"step:{step}", "--into", odd, "--once", "--run", script)
    versions = [run("show", f"step:{step}", "--json").json["id"] for step in (1, 2)]
    expected = [f"{version} {step} {odd}" for step, version in enumerate(versions, 1)]
    assert (folder / "told").read_text().splitlines() == [f"{line} {line}" for line in expected]
    run("follow", "step:2", "--into", odd, "--once", "--run", "echo again >> told")
    assert "again" not in (folder / "told").read_text()


def test_what_the_command_prints_does_not_get_among_the_results(project, folder):
    done = subprocess.run(
        [COMMAND, "follow", "main", "--into", "serving", "--once", "--json", "--run", "echo said; cat"],
        capture_output=True,
        text=True,
        input="not for the command",
    )
    assert json.loads(done.stdout)["step"] == 3
    assert done.stderr == "said\n"


def test_a_command_that_fails_is_told_and_does_not_stop_following(run, project, folder):
    failed = run("follow", "step:1", "--into", "serving", "--once", "--run", "exit 7", code=1)
    assert "ended with exit code 7" in failed.stderr
    assert version_of(folder / "serving") == failed.stdout[:12] + version_of(folder / "serving")[12:]
    with following("--run", "false") as process:
        assert "step 3" in process.stdout.readline()
        run("commit", "step4", "--step", 4)
        assert "step 4" in process.stdout.readline()
        ctrl_c(process)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.count("ended with exit code 1") >= 1


def test_ctrl_c_while_the_command_runs_is_130(run, project, folder):
    os.mkfifo("pipe")
    with following("--run", "cat pipe") as process, open("pipe", "wb"):  # opens once the command reads the other end
        ctrl_c(process)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_killed_follower_is_followed_on(run, project, folder):
    with following("--run", "sleep 60") as process:
        process.stdout.readline()
    run("commit", "step4", "--step", 4)
    assert "step 4" in run("follow", "main", "--into", "serving", "--once").stdout


def test_a_second_follower_is_refused(run, project, folder):
    with following() as process:
        process.stdout.readline()
        refused = run("follow", "main", "--into", "serving", "--once", code=11)
        assert f"by process {process.pid} on" in refused.stderr
        assert json.loads(run("follow", "main", "--into", "serving", "--json", code=11).stderr)["kind"] == (
            "directory_in_use"
        )
        ctrl_c(process)
    run("follow", "main", "--into", "serving", "--once")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["mian"], 1, "unknown ref 'mian'"),
        (["main", "--every", "0s"], 2, "more than no time at all"),
        (["main", "--every", "soon"], 2, "'soon' is no length of time"),
        (["main", "--into", "step1"], 1, "has no VERSION that deltavc wrote; name an empty or new directory"),
        (["main", "--into", "step1/config.json"], 1, "is not a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_followed_is_refused(run, project, folder, args, code, says):
    before = sorted(path.name for path in (folder / "step1").iterdir())
    into = [] if "--into" in args else ["--into", "serving"]
    refused = run("follow", *args, *into, code=code)
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sorted(path.name for path in (folder / "step1").iterdir()) == before


def test_times_are_written_as_people_do(run, project):
    for text in ("2s", "0.5s", "1.5m", "1h"):
        run("follow", "main", "--into", "serving", "--once", "--every", text)


def test_following_needs_nothing_but_the_database_and_the_store_to_come_back(run, project, folder):
    """The repository is moved away and comes back: one warning each way."""
    with following() as process:
        process.stdout.readline()
        project.rename(folder / "away")
        warned = process.stderr.readline() + process.stderr.readline()
        assert "trying again until it is back" in warned
        (folder / "away").rename(project)
        assert "following main again" in process.stderr.readline()
        with deltavc.open(project) as repo:
            repo.rollback("main", "step:1")
        assert "step 1" in process.stdout.readline()
        ctrl_c(process)
        process.communicate(timeout=60)
