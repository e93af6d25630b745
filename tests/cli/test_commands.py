"""What each command does and prints, as text and as JSON."""

import filecmp
import json

import pytest
import torch
from click.shell_completion import ShellComplete
from deltavc.cli.main import COMMANDS, main
from safetensors.torch import load_file, save_file

import deltavc


def test_commit_says_where_the_version_went_and_what_it_cost(run, project):
    out = run("commit", "step4", "-m", "Last\n\nDetails", "--step", "4").stdout
    assert out.startswith("[main] ")
    assert "step 4  Last\n" in out
    assert "stored" in out


def test_commit_takes_everything_that_the_api_takes(run, project, folder):
    (folder / "optimizer.bin").write_bytes(b"state")
    run("branch", "side")
    args = ["--branch", "side", "--metric", "reward=nan", "--metric", "kl=1e-3", "--meta", 'lr={"peak": 1e-6}']
    args += ["--meta", "run=seven", "--file", "opt=optimizer.bin", "--author", "me@here", "--codec", "xor-zstd"]
    found = run("commit", "step4", *args, "--dtype", "float32", "--snapshot", "--json").json
    assert found["branch"] == "side"
    assert found["metrics"] == {"reward": "NaN", "kl": 0.001}
    assert found["meta"] == {"lr": {"peak": 1e-6}, "run": "seven"}
    assert found["files"]["opt"] == 5
    assert found["author"] == "me@here"
    shown = run("show", "side", "--tensors", "--json").json
    assert {tensor["dtype"] for tensor in shown["tensors"]} == {"float32"}
    assert {edge["base"] is None for edge in shown["edges"]} == {True, False}


def test_partial_keeps_tensors_that_the_checkpoint_lacks(run, project, folder):
    weights = load_file("step4/model.safetensors")
    save_file({"layer.weight": weights["layer.weight"]}, folder / "part.safetensors")
    run("commit", "part.safetensors", "--partial")
    assert run("show", "--json").json["num_tensors"] == 2
    run("commit", "part.safetensors")
    assert run("show", "--json").json["num_tensors"] == 1


def test_checkout_gives_back_the_files_that_were_committed(run, project, folder):
    found = run("checkout", "step:2", "-o", "out", "--json").json
    assert found["version"] == run("show", "step:2", "--json").json["id"]
    assert filecmp.cmp("out/model.safetensors", "step2/model.safetensors", shallow=False)
    assert (folder / "out" / "config.json").read_text() == "{}"
    run("checkout", "step:3", "-o", "out", "--overwrite")
    assert filecmp.cmp("out/model.safetensors", "step3/model.safetensors", shallow=False)


def test_log_is_newest_first_with_names_metrics_and_sizes(run, project):
    run("tag", "good", "step:2")
    out = run("log").stdout
    assert out.count("version ") == 3
    assert out.index("Step 3") < out.index("Step 2") < out.index("Step 1")
    assert "(main)" in out
    assert "(tag: good)" in out
    assert "loss=0.333333" in out
    assert "100.0 % changed" in out
    assert "\x1b" not in out


def test_log_oneline_is_a_line_for_each(run, project):
    lines = run("log", "--oneline").stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("Step 3")
    assert run("log", "--oneline", "-n", "2").stdout.splitlines() == lines[:2]


def test_log_of_a_range_has_what_the_second_has_and_the_first_has_not(run, project):
    found = run("log", "step:1..main", "--json").json
    assert [version["step"] for version in found] == [3, 2]
    assert found[0]["refs"] == ["branches/main"]


def test_log_all_shows_and_graph_draws_what_was_rolled_back(run, project):
    run("rollback", "main", "--to", "step:2", "--reason", "loss went up")
    run("commit", "step4", "--step", "4")
    assert [version["step"] for version in run("log", "--json").json] == [4, 2, 1]
    lines = run("log", "--all", "--graph", "--oneline").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["*", "|", "|-'", "*", "*"]
    assert "step 3" in lines[1]


def test_graph_of_whole_blocks_keeps_every_line_beside_its_column(run, project):
    lines = run("log", "--graph").stdout.splitlines()
    assert lines[0].startswith("* version ")
    assert all(line[0] in "*| " for line in lines if line)


def test_show_tells_everything(run, project):
    out = run("show", "step:2", "--tensors").stdout
    for part in ("version ", "Author:", "Date:", "Step:    2", "loss=0.5", "Parents:", "Fingerprint:", "Layout:"):
        assert part in out
    assert "delta from" in out
    assert "config.json, 2 B" in out
    assert "layer.weight  bfloat16  32x32" in out


def test_diff_counts_elements_and_ulps_and_sums_up_what_is_equal(run, project):
    out = run("diff", "step:1", "step:3").stdout
    assert "layer.weight" in out
    assert "layer.bias" not in out
    assert "1 tensor is unchanged" in out
    found = run("diff", "step:1", "step:3", "--json").json
    assert found["total"]["changed_elements"] == 6
    assert found["total"]["largest_step"] == 1
    assert "layer.bias" in run("diff", "step:1", "step:3", "--all").stdout


def test_diff_of_a_version_with_itself_says_that_it_is_the_same(run, project):
    out = run("diff", "main", "main").stdout
    assert "2 tensors are unchanged" in out
    assert "same" in out


def test_branches_are_made_listed_and_deleted(run, project):
    assert "side is at" in run("branch", "side", "step:1").stdout
    assert [item["name"] for item in run("branch", "--json").json] == ["main", "side"]
    assert run("branch").stdout.splitlines()[1].startswith("side  ")
    run("commit", "step4", "--branch", "side")
    was = run("show", "side", "--json").json["id"]
    assert run("branch", "-d", "side", "--json").json == {"deleted": "side", "version": was}
    assert [item["name"] for item in run("branch", "--json").json] == ["main"]


def test_tags_are_made_listed_and_deleted(run, project):
    run("tag", "v1", "step:1")
    assert run("tag", "--json").json[0]["version"]["step"] == 1
    was = run("show", "v1", "--json").json["id"]
    assert run("tag", "-d", "v1").stdout == f"deleted tag v1, which was at {was[:12]}\n"
    assert run("tag").stdout == ""


def test_rollback_moves_the_branch_and_the_reflog_says_why(run, project):
    assert run("rollback", "main", "--to", "step:1", "--reason", "NaN", "--json").json["version"]["step"] == 1
    out = run("reflog").stdout
    assert "main@{0}" in out
    assert "NaN" in out
    found = run("reflog", "main", "-n", "1", "--json").json
    assert found[0]["why"] == "NaN"
    assert run("show", "main@{1}", "--json").json["step"] == 3


def test_identify_finds_the_version_or_fails(run, project):
    assert [version["step"] for version in run("identify", "step2", "--json").json] == [2]
    assert "Step 2" in run("identify", "step2/model.safetensors").stdout
    assert "`deltavc verify step4 --against REF`" in run("identify", "step4", code=1).stderr
    missed = run("identify", "step4", "--json", code=1)
    assert missed.json == []
    assert "no version" in missed.stderr


def test_status_says_when_the_database_was_behind(run, project):
    assert "up to date" in run("status").stdout
    other = deltavc.open(project, db="sqlite:///other.db")
    with other:
        other.rollback("main", to="step:1", reason="elsewhere")
        other.tag("early")
    found = run("status", "--json").json
    assert found["behind"] == ["branches/main", "tags/early"]
    assert found["repository"] == str(project)
    assert found["branches"]["main"]["step"] == 1
    assert run("status", "--json").json["behind"] == []


def test_status_of_an_empty_repository_says_what_to_do(run):
    run("init", "repo")
    assert "deltavc commit" in run("status").stdout


def test_stats_counts(run, project):
    found = run("stats", "--json").json
    assert (found["num_versions"], found["num_branches"], found["num_snapshots"]) == (3, 1, 1)
    assert "versions    3" in run("stats").stdout


def test_a_database_is_upgraded_or_left_alone(run, project):
    assert "already" in run("db", "upgrade").stdout
    found = run("db", "upgrade", "--json").json
    assert found["before"] == found["after"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(run, shell):
    assert "_DELTAVC_COMPLETE" in run("completion", shell).stdout


def test_completion_completes_commands():
    found = ShellComplete(main, {}, "deltavc", "_DELTAVC_COMPLETE").get_completions([], "ch")
    assert [item.value for item in found] == ["checkout"]


def test_shared_options_may_stand_on_either_side_of_the_command(run, project):
    before = json.loads(run("--json", "--repo", project, "stats").stdout)
    assert run("stats", "--json", "--repo", project).json == before


def test_quiet_and_verbose_change_stderr_only(run, project):
    told = run("-v", "checkout", "main", "-o", "one").stderr
    assert "checked out" in told
    assert run("checkout", "main", "-o", "two", "-q").stderr == ""


def test_names_that_would_command_a_terminal_are_spelled_out(run, project, folder):
    save_file({"evil\x1b[2J\nname": torch.ones(2)}, folder / "evil.safetensors")
    run("commit", "evil.safetensors", "-m", "red \x1b[31m")
    for out in (run("show", "--tensors").stdout, run("log", "--graph").stdout, run("diff", "main~1", "main").stdout):
        assert "\x1b" not in out
    assert r"evil\x1b[2J\nname" in run("show", "--tensors").stdout


def test_every_command_has_help(run):
    for command in COMMANDS:
        assert "Usage: deltavc " + command in run(command, "--help").stdout
    overview = run("--help").stdout
    assert "130" in overview
    assert "..." not in overview.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert run("--version").stdout.strip() == f"deltavc {deltavc.__version__}"
