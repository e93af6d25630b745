"""import, export and copy from the command line: what they print, how they end, and that they go on after a kill."""

import signal
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

import deltavc
from tests.interchange.folders import weights_at, write_trainer_checkpoint, write_trainer_output
from tests.states import same


@pytest.fixture
def out(folder):
    return write_trainer_output(folder / "out")


@pytest.fixture
def demo(run, folder):
    run("init", "runs/demo")
    return folder / "runs" / "demo"


def test_a_trainers_folder_is_imported_and_exported(run, demo, out, folder):
    assert run("import", "out", "--dry-run").stdout.splitlines()[-1] == "3 versions would be committed to main"
    done = run("import", "out", "--files", "all", "--json").json
    assert (done["num_new"], [taken["step"] for taken in done["checkpoints"]]) == (3, [10, 20, 30])
    assert done["checkpoints"][0]["metrics"]["loss"] == 0.1
    said = run("import", "out/checkpoint-*").stdout
    assert said.splitlines()[-1] == "0 versions committed to main, 0 B stored, 3 there already"
    told = run("export", "best:loss", "hub", "--max-shard-size", "10kB", "--json").json
    assert (told["num_files"], told["new"]) == (8, True)  # two shards, an index and five files
    assert (folder / "hub" / "optimizer.pt").read_bytes() == b"optimizer of 30"
    run("export", "step:10", "base")
    assert "deltas/weight_v000001" in run("export", "step:10..step:30", "deltas", "--delta-dir").stdout
    assert run("export", "step:10..step:30", "deltas", "--delta-dir").stdout.strip().endswith("as before")
    assert run("import", "--delta-dir", "deltas", "--base", "base", "--branch", "in", "--json").json["num_new"] == 1
    run("export", "in", "served")
    assert same(load_file(folder / "served" / "model.safetensors"), weights_at(30))


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["import"], 2, "name the checkpoints"),
        (["import", "out", "--delta-dir", "x"], 2, "name the checkpoints, or"),
        (["import", "out", "--base", "main"], 2, "go together"),
        (["import", "--delta-dir", "x"], 2, "go together"),
        (["import", "nowhere"], 1, "no such file or directory"),
        (["import", "out", "--branch", "a..b"], 1, "cannot be the name of a branch"),
        (["import", "--delta-dir", "out", "--base", "out/checkpoint-10"], 1, "no weight_v000001"),
        (["import", "--delta-dir", "deltas", "--base", "nothing"], 1, "unknown ref 'nothing'"),
        (["export", "main..main", "x"], 2, "with --delta-dir"),
        (["export", "main", "x", "--delta-dir"], 2, "two versions: A..B"),
        (["export", "main..main", "x", "--delta-dir", "--overwrite"], 2, "are for checkpoints"),
        (["export", "main", "x", "--max-shard-size", "5 apples"], 2, "is no size"),
        (["export", "main", "x", "--max-shard-size", "0"], 2, "is no size"),
        (["copy", "nowhere", "x"], 10, "is not a deltavc repository"),
        (["copy", "runs/demo", "runs/../runs/demo"], 2, "are one repository"),
        (["copy", "runs/demo", "out"], 1, "cannot become a new repository"),
        (["copy", "runs/demo", "x", "nothing"], 1, "only those are copied"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(run, demo, out, folder, args, code, said):
    (folder / "deltas" / "weight_v000001").mkdir(parents=True)
    stderr = run(*args, code=code).stderr
    assert said in " ".join(stderr.split())
    assert "Traceback" not in stderr


def test_a_repository_is_copied_and_the_copy_brought_up_to_date(run, demo, out):
    run("import", "out/checkpoint-10", "out/checkpoint-20")
    run("tag", "good", "step:10")
    assert run("copy", "runs/demo", "mirror", "--dry-run").stdout.splitlines()[-1].endswith("would be copied to mirror")
    assert not Path("mirror").exists()
    assert run("copy", "runs/demo", "mirror", "--json").json["num_versions"] == 2
    run("import", "out")
    done = run("copy", "runs/demo", "mirror", "main", "--json").json
    assert (done["num_versions"], [ref["moved"] for ref in done["refs"]]) == (1, [True])
    for ref in ("main", "good"):
        assert run("show", ref, "--repo", "mirror", "--json").json["id"] == run("show", ref, "--json").json["id"]
    run("commit", "step1", "--repo", "mirror")
    assert [ref["moved"] for ref in run("copy", "runs/demo", "mirror", "--json").json["refs"]] == [False, False]
    run("commit", "step1")
    assert "histories_differ" in run("copy", "runs/demo", "mirror", "--json", code=11).stderr


def test_a_killed_import_goes_on_where_it_was(run, demo, folder):
    steps = range(10, 260, 10)
    for step in steps:
        write_trainer_checkpoint(folder / "long", step, (step,))
    program = Path(sysconfig.get_path("scripts"), "deltavc")
    process = subprocess.Popen([program, "--repo", demo, "import", "long"], stdout=subprocess.DEVNULL)
    with deltavc.open(demo) as repo:
        while len(repo.branches()) == 0 or repo.version().step < 50:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        reached = repo.version().step
        assert reached < 250
        done = run("import", "long", "--json").json
        assert [taken["new"] for taken in done["checkpoints"]] == [step > reached for step in steps]
        assert [version.step for version in reversed(repo.log())] == list(steps)
        assert all(same(repo.checkout(f"step:{step}"), weights_at(step)) for step in (10, reached, reached + 10, 250))
