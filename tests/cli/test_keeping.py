"""Policy, expire and gc on the command line: what they print, and that they ask before they let anything go."""

import os
import pty
import subprocess
import sysconfig
import time

import pytest

import deltavc

KEPT = ["--keep-last", "1", "--no-keep-tagged"]


@pytest.fixture
def spread(run, project):
    """Four versions, of which the others can lose their weights when only the last one is kept."""
    run("commit", "step4", "--step", "4", "--snapshot")
    return project


def test_a_policy_is_shown_set_in_part_and_reset(run, project):
    assert run("policy").stdout.startswith("every version keeps its weights\n")
    run("policy", "--keep-last", "3", "--keep-best", "loss=2", "--keep-best", "reward=1", "--reason", "room")
    run("policy", "--keep-every", "10", "--keep-best", "reward=0", "--grace", "14d")
    found = run("policy", "--json").json
    assert (found["keep_last"], found["keep_every"], found["keep_best"]) == (3, 10, {"loss": 2})
    assert (found["grace_seconds"], found["keep_tagged"]) == (14 * 86400, True)
    out = run("policy", "--keep-last", "0", "--no-keep-tagged").stdout
    assert "last" not in out.replace("until lately", "")
    assert "tags" not in out
    assert run("policy", "--reset", "--keep-days", "7", "--json").json["keep_best"] == {}


def test_a_short_grace_is_told_what_it_does_to_writers(run, project):
    assert "longer than 30s is refused" in run("policy", "--grace", "1m").stderr
    assert run("policy", "--grace", "2h").stderr == ""


@pytest.mark.parametrize(
    "args",
    [
        *(["--keep-last", "-1"], ["--keep-every", "x"], ["--keep-best", "loss"], ["--keep-best", "loss=x"]),
        *(["--grace", "soon"], ["--grace", "0s"], ["--grace", "1.5s"], ["--keep-best", "loss=-1"]),
    ],
)
def test_a_policy_that_makes_no_sense_changes_nothing(run, project, args):
    run("policy", *args, code=1 if args[-1] == "loss=-1" else 2)
    assert run("policy", "--json").json == deltavc.Policy().as_json()


def test_versions_lose_their_weights_and_the_log_says_so(run, spread):
    run("policy", *KEPT)
    preview = run("expire", "--dry-run", "--json").json
    assert run("log", "--oneline").stdout.count("no weights") == 0
    report = run("expire", "--yes", "--json").json
    assert report["lost"] == preview["lost"] != []
    assert run("log", "--oneline").stdout.count("no weights") == len(report["lost"])
    assert "no weights: they were not kept" in run("show", report["lost"][0]).stdout
    failed = run("checkout", report["lost"][0], "-o", "out", code=1)
    assert "no weights that can be reached" in failed.stderr
    assert "1 version kept (head 1, last 1)" in run("expire", "--yes").stdout


def test_what_was_dropped_is_deleted_after_the_grace(run, spread):
    run("policy", *KEPT, "--grace", "1s")
    freed = run("expire", "--yes", "--json").json["freed_bytes"]
    assert freed > 0
    time.sleep(1.2)
    assert run("gc", "--dry-run", "--json").json["deleted_bytes"] == freed
    assert "deleted" in run("gc", "--yes").stdout
    assert run("gc", "--yes", "--json").json["deleted_bytes"] == 0
    run("checkout", "main", "-o", "out")


def test_they_ask_and_refuse_where_nobody_can_answer(run, spread):
    run("policy", *KEPT, "--grace", "1s")
    assert "--yes" in run("expire", code=2).stderr
    assert run("log", "--oneline").stdout.count("no weights") == 0


@pytest.mark.parametrize("answer", ["y", "n"])
def test_an_answer_at_a_terminal_is_taken(run, spread, answer):
    run("policy", *KEPT)
    ours, theirs = pty.openpty()
    command = [os.path.join(sysconfig.get_path("scripts"), "deltavc"), "expire"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asks:
        os.write(ours, answer.encode() + b"\n")
        _, said = asks.communicate(timeout=60)
    assert "Let them go?" in said
    assert asks.returncode == (0 if answer == "y" else 1)
    assert (run("log", "--oneline").stdout.count("no weights") > 0) is (answer == "y")


def test_nothing_is_asked_where_there_is_nothing_to_do(run, project):
    assert "0 versions lost" in run("expire", "--yes").stdout
    assert "would lose" in run("expire").stdout
    assert "would delete 0 packs" in run("gc").stdout


def test_less_than_the_grace_is_refused_with_the_way_to_get_it(run, project):
    failed = run("gc", "--older-than", "1h", "--yes", code=1)
    assert "deltavc policy --grace" in failed.stderr
    run("gc", "--older-than", "yesterday", "--yes", code=2)
