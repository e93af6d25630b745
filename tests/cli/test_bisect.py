"""deltavc bisect: git's meaning and exit codes, marks that survive everything, and an end that says what to do."""

import json
import os
import re
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import deltavc
from tests.states import same

COMMAND = Path(sysconfig.get_path("scripts")) / "deltavc"


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A folder with a repository of steps 0 to 15 on main, of which 11 is the first bad one; 20 and 21 fork from 5."""
    folder = tmp_path_factory.mktemp("bisect")
    with deltavc.init(folder / "runs" / "demo") as repo:
        with repo.writer("main") as writer:
            for step in range(16):
                state = {"w": torch.arange(100.0) + step + 1000 * (step >= 11), "b": torch.ones(9)}
                writer.commit(state, f"step {step}", step=step, files={"config.json": b"{}"})
        repo.branch("fork", "step:5")
        with repo.writer("fork") as writer:
            for step in (20, 21):
                writer.commit({"w": torch.arange(100.0) - step, "b": torch.ones(9)}, step=step)
    return folder


@pytest.fixture
def place(folder, grown):
    """The working folder, with a configuration that names the repository."""
    (folder / ".deltavc").mkdir()
    (folder / ".deltavc" / "config.toml").write_text(f'repo = "{grown / "runs" / "demo"}"\n')
    return folder


@pytest.fixture
def bisect(run, place):
    """Run `deltavc bisect` with these arguments."""
    return lambda *args, **told: run("bisect", *args, **told)


@pytest.fixture
def ids(run, place):
    return {version["step"]: version["id"] for version in run("log", "--all", "--json").json}


def state_of(place):
    """Every file of the searches of this folder, and what is in it."""
    return {path: path.read_bytes() for path in (place / ".deltavc").rglob("*") if path.is_file()}


def test_a_search_by_hand(bisect, ids):
    assert "waiting for a good and a bad version" in bisect("start").stdout
    assert "waiting for a good version, bad version known" in bisect("bad", "main").stdout
    first = bisect("good", "step:0")
    assert first.stdout.splitlines() == [
        "Bisecting: 7 versions left to test after this (roughly 3 steps)",
        f"{ids[7][:12]}  step 7  step 7",
    ]
    assert f"deltavc checkout {ids[7][:12]} -o DIR" in first.stderr
    assert ids[11][:12] in bisect("good").stdout
    assert ids[9][:12] in bisect("bad").stdout
    assert "0 versions left to test after this (roughly 0 steps)" in bisect("good").stdout
    done = bisect("good").stdout
    assert done.startswith(f"{ids[11]} is the first bad version\nversion {ids[11]}")
    assert "Step:    11\n" in done
    assert f"What changed most, from {ids[10][:12]}  step 10  step 10:" in done
    assert f"  deltavc rollback main --to {ids[10][:12]} --reason 'step 11 is the first bad one'\n" in done


def test_json_says_the_same_to_programs(bisect, ids):
    assert bisect("start", "--json").json == {"status": "waiting", "bad": None, "good": []}
    told = bisect("start", "main", "step:0", "--json").json
    assert (told["status"], told["version"]["id"], told["num_left"], told["num_steps"]) == ("trying", ids[7], 7, 3)
    told = bisect("run", "--json", "test {step} -lt 11").json
    assert (told["status"], told["first_bad"]["id"], told["before"]["id"]) == ("found", ids[11], ids[10])
    assert [tensor["status"] for tensor in told["changed"]["tensors"]] == ["same", "changed"]
    assert all(each["move_seconds"] > 0 for each in told["evaluations"])
    assert [each["id"] for each in bisect("view", "--json").json] == [ids[11]]
    assert {"verdict": "bad", "version": ids[15]} in bisect("log", "--json").json
    assert bisect("reset", "--json").json == {"reset": True}


def test_run_tells_the_command_where_and_what_and_every_try_is_exactly_the_version(bisect, place, grown, ids):
    bisect("start", "main", "step:0")
    odd = place / "it's; $HOME {step}"
    script = "cp {path}/model.safetensors {step}.safetensors; echo {version} {path} $DELTAVC_VERSION >> told"
    done = bisect("run", "--into", odd, f'{script}; echo "$DELTAVC_PATH" >> told; test $DELTAVC_STEP -lt 11')
    assert "is the first bad version" in done.stdout
    assert done.stderr.count("moved in") == 4
    tried = [int(path.stem) for path in place.glob("*.safetensors")]
    told = (place / "told").read_text().splitlines()
    assert sorted(told) == sorted(line for at in tried for line in (f"{ids[at]} {odd} {ids[at]}", str(odd)))
    assert len(tried) == 4
    with deltavc.open(grown / "runs" / "demo") as repo:
        assert all(same(load_file(f"{step}.safetensors"), dict(repo.checkout(ids[step]))) for step in tried)
    assert (odd / "config.json").read_text() == "{}"


def test_a_program_and_its_arguments_are_filled_in_word_by_word(bisect, place, ids):
    (place / "say").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> told\ntest "$2" -lt 11\n')
    (place / "say").chmod(0o755)
    odd = place / "a b"
    bisect("start", "main", "step:0", "--into", odd)
    bisect("run", "./say", "--path={path} c", "{step}", "-q", "$HOME")
    assert (place / "told").read_text().splitlines()[:4] == [f"--path={odd} c", "7", "-q", "$HOME"]


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("exit 128", 1, "ended with 128"),
        ("kill -9 $$", 1, "ended with -9"),
        ("./nothing-like-this", 1, "ended with 127 .* so it does for the good"),
        ("./config", 1, "ended with 126 .* so it does for the good"),
        ("test {step} -lt 11 || exit 127", 0, ""),
        ("test {step} -lt 11 || exit 3", 0, ""),
        ("test {step} -ge 6 -a {step} -lt 13 && exit 125; test {step} -lt 11", 2, "any of"),
    ],
)
def test_exit_codes_of_the_command_mean_what_they_mean_to_git(bisect, place, ids, script, code, says):
    (place / "config").write_text("no program")
    bisect("start", "main", "step:0")
    before = state_of(place)
    done = bisect("run", script, code=code)
    if code == 1:
        assert re.search(says, done.stderr)
        assert "evaluation_failed" in bisect("run", "--json", script, code=1).stderr
        assert {path: body for path, body in state_of(place).items() if "weights" not in path.parts} == before
    elif code == 2:
        assert says in done.stdout
        assert [f"step {step}" in done.stdout for step in (5, 6, 12, 13)] == [False, True, True, True]
        assert [each["step"] for each in bisect("view", "--json").json] == [13, 12, 11, 10, 9, 8, 7, 6]
        assert bisect("run", "--json", "true", code=2).json["status"] == "undecided"
    else:
        assert f"{ids[11]} is the first bad version" in done.stdout


def test_skipping(bisect, ids):
    bisect("start", "main", "step:0")
    told = bisect("skip", "--json").json["version"]["step"]
    assert told != 7
    bisect("skip", "step:2..step:14", code=0)
    assert "could be any of" in bisect("skip", "step:1", "step:2", code=2).stdout
    assert "a range names many versions" in bisect("good", "step:2..step:14", code=1).stderr


def test_a_log_is_replayed_and_a_wrong_mark_is_put_right(bisect, place, ids):
    bisect("start", "main", "step:0")
    bisect("bad")
    bisect("bad")  # which was wrong: step 3 is good
    bisect("good", "step:3")
    told = bisect("good", "--json").json["version"]["step"]
    (place / "log").write_text(bisect("log").stdout)
    bisect("reset")
    assert bisect("replay", "log", "--json").json["version"]["step"] == told
    assert "# bad: " in (place / "log").read_text()
    (place / "log").write_text("deltavc bisect bad mian\n")
    before = state_of(place)
    assert "unknown ref 'mian'" in bisect("replay", "log", code=1).stderr
    (place / "log").write_text("git bisect start\n")
    assert "line 1" in bisect("replay", "log", code=1).stderr
    assert state_of(place) == before


def test_good_and_bad_mixed_up_are_told_and_nothing_is_marked(bisect, place):
    refused = bisect("start", "step:0", "main", code=1)
    assert "good and bad were mixed up" in refused.stderr
    assert state_of(place).keys() == {place / ".deltavc" / "config.toml"}
    bisect("start", "main", "step:5")
    before = state_of(place)
    assert "marks_contradict" in bisect("bad", "step:3", "--json", code=1).stderr
    assert state_of(place) == before


def test_a_good_version_on_a_fork_has_the_fork_tried_and_a_bad_fork_ends_with_3(bisect, ids):
    first = bisect("start", "main", "fork")
    assert "from where a good one forked has to be tried first" in first.stdout
    assert ids[5][:12] in first.stdout
    assert "was put right on the way" in bisect("bad", code=3).stderr
    assert bisect("good", "--json").json["num_suspects"] == 10
    assert bisect("run", "--json", "test {step} -lt 11").json["first_bad"]["id"] == ids[11]


def test_branches_may_move_meanwhile(bisect, run, place, grown, ids):
    bisect("start", "main", "step:0")
    with deltavc.open(grown / "runs" / "demo") as repo:
        repo.rollback("main", "step:4")
        try:
            found = bisect("run", "--json", "test {step} -lt 11").json
        finally:
            repo.rollback("main", ids[15])
    assert found["first_bad"]["id"] == ids[11]
    assert found["rollback"] is None  # main is back before it already


def test_a_kill_in_the_middle_loses_nothing(bisect, place, ids):
    bisect("start", "main", "step:0")
    script = (
        "echo {step} >> tried; test {step} -eq 9 -a ! -e killed && touch killed && kill -9 $PPID; test {step} -lt 11"
    )
    done = subprocess.run([COMMAND, "bisect", "run", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert bisect("run", "--json", script).json["first_bad"]["id"] == ids[11]
    tried = (place / "tried").read_text().split()
    assert tried == ["7", "11", "9", "9", "10"]


@pytest.mark.long
def test_ctrl_c_in_the_middle_loses_nothing(bisect, place, ids):
    bisect("start", "main", "step:0")
    os.mkfifo("pipe")
    script = "echo {step} >> tried; test {step} -eq 9 -a ! -e stopped && touch stopped && cat pipe; test {step} -lt 11"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([COMMAND, "bisect", "run", script], start_new_session=True, **streams) as process,
        open("pipe", "wb"),  # opens once the command reads the other end
    ):
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert bisect("run", "--json", script).json["first_bad"]["id"] == ids[11]
    assert (place / "tried").read_text().split() == ["7", "11", "9", "9", "10"]


@pytest.mark.long
def test_marks_of_another_shell_are_taken_up_and_a_search_that_was_begun_anew_is_left_alone(bisect, place, ids):
    bisect("start", "main", "step:0")
    other = f"{COMMAND} bisect good step:9 -q > /dev/null"
    done = bisect("run", f"echo {{step}} >> tried; test {{step}} -eq 7 && {other}; test {{step}} -lt 11")
    assert ids[11] in done.stdout
    assert "9" not in (place / "tried").read_text().split()
    bisect("start", "main", "step:0")
    anew = f"{COMMAND} bisect start main step:8 -q > /dev/null"
    assert "begun anew in another shell" in bisect("run", f"{anew}; true", code=1).stderr
    assert len(bisect("log", "--json").json) == 2


def test_files_that_are_left_out_are_not_put_there(bisect, place):
    bisect("start", "main", "step:0", "--into", "tries", "--leave-out", "conf*")
    bisect("run", "echo {step} >> tried; ls {path} >> listed; test {step} -lt 11")
    assert set((place / "listed").read_text().split()) == {"VERSION", "model.safetensors"}
    told = len((place / "tried").read_text().split())
    bisect("run", "false")  # it is found already, and nothing is tried
    assert len((place / "tried").read_text().split()) == told


def test_each_try_is_put_where_start_says(bisect, place, ids):
    bisect("start", "main", "step:0", "--into", "tries")
    for verdict in ("good", "bad"):
        told = bisect(verdict, "--json").json
        assert json.loads((place / "tries" / "VERSION").read_text())["version"] == told["version"]["id"]
        assert told["directory"] == str(place / "tries")
    bisect("reset")
    assert (place / "tries" / "model.safetensors").exists()
    assert not (place / ".deltavc" / "bisect").exists()


def test_a_repository_that_is_named_is_searched_from_anywhere(run, grown, folder, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    url = grown / "runs" / "demo"
    run("bisect", "start", "main", "step:0", "--repo", url)
    monkeypatch.setenv("DELTAVC_REPO", str(url))
    found = run("bisect", "run", "test {step} -lt 11")
    assert "  deltavc rollback main --to" in found.stdout
    found = run("bisect", "run", "--repo", url, "--json", "true")
    assert found.json["rollback"].startswith(f"deltavc --repo {url} rollback main --to")
    run("bisect", "reset")
    assert [path for path in (folder / "state").rglob("*") if path.is_file()] == []


def test_a_directory_of_others_is_refused_and_not_kept(bisect, place):
    before = sorted((place / "step1").iterdir())
    assert "not empty" in bisect("start", "main", "step:0", "--into", "step1", code=1).stderr
    assert state_of(place).keys() == {place / ".deltavc" / "config.toml"}
    bisect("start", "main", "step:0")
    assert "not empty" in bisect("run", "--into", "step1", "true", code=1).stderr
    assert "is the first bad version" in bisect("run", "test {step} -lt 11").stdout
    assert sorted((place / "step1").iterdir()) == before


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["good"], 1, "no search is on its way here"),
        (["run", "true"], 1, "no search is on its way here"),
        (["log"], 1, "no search is on its way here"),
        (["view"], 1, "no search is on its way here"),
        (["run"], 2, "Missing argument"),
        (["start", "mian"], 1, "unknown ref 'mian'"),
        (["start", "main", "step:99"], 1, "unknown ref 'step:99'"),
        (["replay", "nothing"], 2, "does not exist"),
        ([], 2, "Usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(bisect, place, args, code, says):
    refused = bisect(*args, code=code)
    assert says in refused.stderr + refused.stdout
    assert "Traceback" not in refused.stderr
    assert state_of(place).keys() == {place / ".deltavc" / "config.toml"}


def test_a_search_that_lacks_marks_says_which(bisect):
    bisect("start", "main")
    assert "waiting for a good version" in bisect("run", "true", code=1).stderr
    assert "deltavc bisect good REF" in bisect("good", code=2).stderr
    assert "no search is on its way here" in bisect("reset").stdout + bisect("reset").stdout


def test_a_damaged_search_is_an_error_and_reset_ends_it(bisect, place):
    bisect("start", "main", "step:0")
    (state,) = (place / ".deltavc").rglob("state.json")
    state.write_text(state.read_text()[:-5])
    assert "bad_journal" in bisect("log", "--json", code=1).stderr
    bisect("reset")
    bisect("start", "main", "step:0")
