"""Importing folders of checkpoints: steps, metrics and files as they lay there, once each, in order."""

import itertools
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import deltavc
from deltavc.errors import BadCheckpoint, DeltavcError
from deltavc.interchange.found import step_of
from tests.faults import WRITES, faulty
from tests.interchange.folders import STEPS, weights_at, write_trainer_checkpoint, write_trainer_output
from tests.states import same


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


@pytest.fixture
def out(tmp_path):
    return write_trainer_output(tmp_path / "out")


def steps(repo, branch="main"):
    return [version.step for version in reversed(repo.log(branch))]


def test_a_trainers_folder_becomes_a_branch_with_its_metrics_and_files(repo, out):
    write_trainer_checkpoint(out, 100, (*STEPS, 100))  # sorts before 20 as text
    done = deltavc.import_checkpoints(repo, out)
    assert (done.num_new, done.branch) == (4, "main")
    assert steps(repo) == [10, 20, 30, 100]
    for version, taken in zip(reversed(repo.log()), done.checkpoints, strict=True):
        step = version.step
        assert same(repo.checkout(version.id), weights_at(step))
        assert version.metrics["loss"] == 1 / step
        assert version.metrics["eval_loss"] == 2 / step
        assert version.metrics["grad_norm"] == 1.5
        assert "step" not in version.metrics
        assert version.message == f"checkpoint-{step}"
        assert version.meta == {"imported_from": str(out / f"checkpoint-{step}")}
        assert set(version.files) == {"config.json", "tokenizer.json", "trainer_state.json"}
        assert taken.as_json()["version"] == version.id


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ("none", set()),
        ("small", {"config.json", "tokenizer.json", "trainer_state.json"}),
        ("all", {"config.json", "tokenizer.json", "trainer_state.json", "optimizer.pt", "rng_state.pth"}),
    ],
)
def test_which_files_are_kept_can_be_said(repo, out, files, kept):
    deltavc.import_checkpoints(repo, out, files=files)
    assert {name for version in repo.log() for name in version.files} == kept
    if files == "all":
        assert repo.read_file("step:20", "optimizer.pt") == b"optimizer of 20"


def test_an_import_that_runs_again_takes_in_what_is_new_and_proves_the_rest(repo, out):
    deltavc.import_checkpoints(repo, [out / "checkpoint-20", out / "checkpoint-10"])
    before = repo.log()
    assert deltavc.import_checkpoints(repo, out).num_new == 1
    again = deltavc.import_checkpoints(repo, out)
    assert (again.num_new, [taken.new for taken in again.checkpoints]) == (0, [False] * 3)
    assert repo.log()[1:] == before
    save_file(weights_at(40), out / "checkpoint-20" / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"checkpoint-20: is step 20, and branch 'main' has other weights"):
        deltavc.import_checkpoints(repo, out)
    assert steps(repo) == [10, 20, 30]


def test_a_dry_run_says_what_would_be_and_commits_nothing(repo, out):
    deltavc.import_checkpoints(repo, out / "checkpoint-10")
    done = deltavc.import_checkpoints(repo, str(out / "checkpoint-*"), dry_run=True)
    assert [(taken.step, taken.new) for taken in done.checkpoints] == [(10, False), (20, True), (30, True)]
    assert done.checkpoints[2].metrics["loss"] == 1 / 30
    assert steps(repo) == [10]


def test_another_branch_starts_on_its_own_and_a_step_that_was_passed_is_refused(repo, out):
    repo.commit({"w": torch.ones(4)}, step=15)
    with pytest.raises(BadCheckpoint, match="step 10, which branch 'main' has not, and has gone past"):
        deltavc.import_checkpoints(repo, out)
    deltavc.import_checkpoints(repo, out, "imported")
    assert steps(repo, "imported") == [10, 20, 30]
    assert repo.version("imported~2").parents == ()
    assert steps(repo) == [15]


def test_it_works_without_a_database(tmp_path, out):
    with deltavc.init(tmp_path / "bare", db="none") as repo:
        deltavc.import_checkpoints(repo, [out / "checkpoint-10", out / "checkpoint-20"])
        assert deltavc.import_checkpoints(repo, out).num_new == 1
        assert same(repo.checkout("main~1"), weights_at(20))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-100", 100),
        ("global_step_7", 7),
        ("epoch=3-step=1200.ckpt", 1200),
        ("net-v2_epoch1_loss0.5.pt", 1),
        ("Iteration0042", 42),
        ("v1.5-100", 100),
        ("net.10.safetensors", 10),
        ("0030", 30),
        ("Qwen2.5-7B", None),
        ("model.safetensors", None),
        ("final", None),
        ("step-12345678901234567", None),
    ],
)
def test_a_name_tells_its_step(name, step):
    assert step_of(name) == step


def test_a_checkpoint_that_a_trainer_is_still_writing_is_refused(repo, out):
    state = out / "checkpoint-30" / "trainer_state.json"
    written_last = state.read_bytes()
    state.unlink()
    with pytest.raises(BadCheckpoint, match=r"checkpoint-30: has no trainer_state\.json"):
        deltavc.import_checkpoints(repo, out)
    assert repo.branches() == {}
    assert deltavc.import_checkpoints(repo, [out / "checkpoint-10", out / "checkpoint-20"]).num_new == 2
    state.write_bytes(written_last)
    assert deltavc.import_checkpoints(repo, out).num_new == 1
    state.unlink()
    assert deltavc.import_checkpoints(repo, out).num_new == 0


def test_a_hidden_link_to_nothing_does_no_harm(repo, out):
    (out / "checkpoint-10" / ".#config.json").symlink_to("somebody@somewhere.1234")
    assert deltavc.import_checkpoints(repo, out).num_new == 3


def test_files_in_a_folder_and_by_a_pattern(repo, tmp_path):
    folder = tmp_path / "loose"
    folder.mkdir()
    for epoch in (1, 2, 10):
        torch.save({"state_dict": weights_at(epoch), "epoch": epoch}, folder / f"net-v2_epoch{epoch}_loss0.5.pt")
        save_file(weights_at(epoch), folder / f"net-{epoch}.safetensors")
    deltavc.import_checkpoints(repo, str(folder / "*.pt"))
    deltavc.import_checkpoints(repo, folder.glob("*.safetensors"), "other")
    assert steps(repo) == steps(repo, "other") == [1, 2, 10]
    assert same(repo.checkout("step:10"), weights_at(10))
    with pytest.raises(BadCheckpoint, match=r"step (\d+), and so is .*net-"):
        deltavc.import_checkpoints(repo, sorted(folder.iterdir(), key=str, reverse=True))


def test_a_directory_with_a_pickle_of_weights(repo, tmp_path):
    at = tmp_path / "old" / "checkpoint-5"
    at.mkdir(parents=True)
    torch.save(weights_at(5), at / "pytorch_model.bin")
    (at / "config.json").write_text("{}")
    deltavc.import_checkpoints(repo, tmp_path / "old", files="all")
    assert same(repo.checkout("step:5"), weights_at(5))
    assert set(repo.version().files) == {"config.json"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda out: out / "nothing", "no such file"),
        (lambda out: str(out / "nothing-*"), "matches nothing"),
        (lambda out: [], "no paths"),
        (lambda out: shutil.copytree(out / "checkpoint-10", out / "final"), "tells no step"),
        (lambda out: out / "checkpoint-10" / "config.json", "tells no step"),
        (lambda out: out.parent / "empty", "no checkpoints in it"),
    ],
)
def test_paths_without_checkpoints_are_refused(repo, out, make, said):
    (out.parent / "empty").mkdir()
    with pytest.raises(BadCheckpoint, match=said):
        deltavc.import_checkpoints(repo, make(out))
    assert repo.branches() == {}


def test_whatever_is_wrong_with_any_of_them_is_said_before_anything_is_committed(repo, out):
    state = out / "checkpoint-30" / "trainer_state.json"
    for content in (b"{", b"[]", b'{"log_history": 3}', b"[" * 100_000):
        state.write_bytes(content)
        with pytest.raises(BadCheckpoint, match=r"trainer_state\.json"):
            deltavc.import_checkpoints(repo, out)
    state.write_text(json.dumps({"log_history": [{"step": 30, "loss": float("nan"), "": 1, "x": 10**400, "y": "z"}]}))
    weights = out / "checkpoint-30" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(BadCheckpoint, match=r"checkpoint-30.*damaged"):
        deltavc.import_checkpoints(repo, out)
    weights.write_bytes(whole)
    (out / "checkpoint-30" / "a:b").write_text("")
    with pytest.raises(DeltavcError, match="a:b"):
        deltavc.import_checkpoints(repo, out)
    assert repo.branches() == {}
    (out / "checkpoint-30" / "a:b").unlink()
    deltavc.import_checkpoints(repo, out)
    assert list(repo.version().metrics) == ["loss"]


def test_it_goes_on_after_a_failure_at_any_write(tmp_path, out, monkeypatch):
    for nth in itertools.count(1, 3):
        store = faulty(f"memory://import-{nth}")
        monkeypatch.setattr("deltavc.opening.open_store", lambda *_, store=store: store)
        with deltavc.init(store.url) as repo:
            with store.failing(nth, "before", names=WRITES) as fired:
                try:
                    deltavc.import_checkpoints(repo, out)
                except DeltavcError:
                    assert fired
            done = len(repo.log()) if repo.branches() else 0
            assert deltavc.import_checkpoints(repo, out).num_new == 3 - done
            assert steps(repo) == [10, 20, 30]
            assert all(same(repo.checkout(f"step:{step}"), weights_at(step)) for step in STEPS)
        if not fired:
            break
    assert nth > 12


def test_it_goes_on_after_ctrl_c(repo, out):
    told = []

    def progress(doing, done, total):
        told.append((doing, done, total))
        if (doing, done) == ("committing", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deltavc.import_checkpoints(repo, out, progress=progress)
    assert steps(repo) == [10, 20]
    assert told[-3:] == [("committing", 0, 3), ("committing", 1, 3), ("committing", 2, 3)]
    assert deltavc.import_checkpoints(repo, out).num_new == 1
    assert steps(repo) == [10, 20, 30]


def test_twenty_checkpoints_store_the_first_and_the_deltas(repo, tmp_path):
    folder = write_trainer_output(tmp_path / "twenty", range(10, 210, 10))
    for at in folder.iterdir():  # a matrix large enough for its bytes to be what counts
        save_file(weights_at(int(at.name[11:]), rows=4096), at / "model.safetensors")
    first = (folder / "checkpoint-10" / "model.safetensors").stat().st_size
    done = deltavc.import_checkpoints(repo, folder, files="none")
    assert done.num_new == 20
    deltas = sum(taken.stored_bytes for taken in done.checkpoints[1:])
    assert done.checkpoints[0].stored_bytes <= 0.7 * first
    assert done.stored_bytes <= 0.7 * first + deltas
    assert deltas < 0.02 * 19 * first
    assert same(repo.checkout("step:200"), load_file(folder / "checkpoint-200" / "model.safetensors"))
