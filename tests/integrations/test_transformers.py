"""A real Trainer with the callback: every step is there, and a run that was killed is one that never was."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import GPT2LMHeadModel, TrainerCallback

import deltavc
from deltavc.errors import BadState, BranchMoved, BranchTaken, RolledBackTooOften, StoreUnavailable, UnknownRef
from deltavc.integrations.transformers import DeltavcCallback
from deltavc.store.objects import open_store
from tests.docs.pages import ROOT
from tests.faults import WRITES, FaultyStore
from tests.integrations.trainers import (
    STEPS_PER_EPOCH,
    Spy,
    Stream,
    crash,
    make_trainer,
    nan_gradients,
    run,
    spoil,
    weights_of,
)
from tests.states import same
from tests.test_faults import opened

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    """A run from beginning to end: its trainer, the weights of its steps, its callback."""
    folder = tmp_path_factory.mktemp("never-killed")
    callback = DeltavcCallback(folder / "repo", state_every=4)
    trainer, weights = run(folder, callback)
    yield trainer, weights, callback
    callback.close()


def optimizer_of(trainer):
    states = trainer.optimizer.state_dict()["state"]
    return {f"{place}.{name}": tensor for place, state in states.items() for name, tensor in state.items()}


def line(repo, branch="main"):
    """The versions of a branch, oldest first."""
    return repo.log(branch)[::-1]


def whys(repo, branch="main"):
    """Why a branch was moved, other than by commits, oldest first."""
    return [move.why for move in repo.reflog(branch)[::-1] if move.why != "commit"]


def check_same_run(trainer, repo, never_killed):
    other, _, callback = never_killed
    assert same(weights_of(trainer.model), weights_of(other.model))
    assert same(optimizer_of(trainer), optimizer_of(other))
    assert trainer.lr_scheduler.state_dict() == other.lr_scheduler.state_dict()
    assert trainer.state.log_history[:-1] == other.state.log_history[:-1]  # the last tells how long it took
    told = [(version.step, version.fingerprint, version.metrics) for version in line(repo)]
    assert told == [(version.step, version.fingerprint, version.metrics) for version in line(callback.repo)]


def test_every_step_is_a_version_with_its_weights_and_metrics(never_killed):
    trainer, weights, callback = never_killed
    logged = {told["step"]: told for told in trainer.state.log_history if "loss" in told}
    assert [version.step for version in line(callback.repo)] == list(range(11))
    for version in line(callback.repo):
        assert same(callback.repo.checkout(version.id), weights[version.step])
        assert {**version.metrics, "step": version.step} == logged.get(version.step, {"step": 0})
    assert [version.step for version in line(callback.repo) if "optimizer.pt" in version.files] == [0, 4, 8, 10]


def test_a_version_is_a_model_that_from_pretrained_takes(never_killed, tmp_path):
    _, weights, callback = never_killed
    callback.repo.checkout("step:7", path=tmp_path / "step7")
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "step7")
    assert same(weights_of(model), weights[7])


def test_a_run_that_was_killed_goes_on_as_if_it_never_was(never_killed, tmp_path):
    script = [sys.executable, "-m", "tests.integrations.trainers", str(tmp_path), "7"]
    killed = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with deltavc.open(tmp_path / "repo") as repo:
        before = line(repo)
    assert 4 <= before[-1].step < 7
    callback = DeltavcCallback(tmp_path / "repo", state_every=4)
    trainer, weights = run(tmp_path, callback)
    assert min(weights) == 4
    check_same_run(trainer, callback.repo, never_killed)
    assert line(callback.repo)[: len(before)] == before
    assert whys(callback.repo) == []
    assert os.listdir(tmp_path) == ["repo"]
    callback.close()


@pytest.mark.long
@pytest.mark.parametrize("state_every", [1, 3, 100])
@pytest.mark.parametrize("step", range(1, 11))
def test_wherever_a_run_ends_it_goes_on_as_if_it_had_not(never_killed, step, state_every):
    with deltavc.init(f"memory://ends-{step}-{state_every}") as repo:
        run("unused", DeltavcCallback(repo, state_every=state_every), {step: crash})
        trainer, weights = run("unused", DeltavcCallback(repo, state_every=state_every))
        assert min(weights) == (step - 1) // state_every * state_every
        check_same_run(trainer, repo, never_killed)
        assert whys(repo) == []


WAYS = {
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2},
    "grouped": {"train_sampling_strategy": "group_by_length"},  # which shuffles by what is drawn as an epoch begins
    "worker": {"dataloader_num_workers": 1},
    "streamed": {"data": Stream()},
    "epochs": {"max_steps": -1, "num_train_epochs": 3},
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "grouped" else pytest.mark.long) for way in WAYS])
def test_however_data_come_a_run_that_ended_goes_on_as_if_it_had_not(tmp_path, way):
    with deltavc.init(f"memory://{way}") as never, deltavc.init(f"memory://{way}-ended", db="none") as ended:
        trainer, _ = run(tmp_path, DeltavcCallback(never, state_every=3), **WAYS[way])
        run(tmp_path, DeltavcCallback(ended, state_every=3), {9: crash}, **WAYS[way])
        resumed, weights = run(tmp_path, DeltavcCallback(ended, state_every=3), **WAYS[way])
        assert min(weights) == 6
        assert same(weights_of(resumed.model), weights_of(trainer.model))
        assert ended.version("main").fingerprint == never.version("main").fingerprint
        assert whys(ended) == []


def test_a_run_goes_on_from_a_step_or_a_tag_and_leaves_the_steps_after_it(never_killed, tmp_path):
    with deltavc.init("memory://from-a-step") as repo:
        run(tmp_path, DeltavcCallback(repo, state_every=4), {9: crash})
        repo.tag("good", at="step:6")
        repo.rollback("main", to="step:5", reason="to look at it")
        trainer, again = run(tmp_path, DeltavcCallback(repo, state_every=4), ref="good")
        check_same_run(trainer, repo, never_killed)
        assert min(again) == 4
        assert whys(repo) == ["to look at it", "resumed from good"]
        before = line(repo)
        run(tmp_path, DeltavcCallback(repo, state_every=4), {6: crash}, ref="step:3")
        assert line(repo)[:4] == before[:4]
        assert [version.fingerprint for version in line(repo)] == [version.fingerprint for version in before[:6]]


def test_what_comes_out_otherwise_than_before_is_committed_from_there(tmp_path):
    with deltavc.init("memory://otherwise") as repo:
        run(tmp_path, DeltavcCallback(repo, state_every=3), {6: crash})
        old = repo.version("main")
        _, weights = run(tmp_path, DeltavcCallback(repo, state_every=3), {5: spoil}, max_steps=7)
        assert [version.step for version in line(repo)] == list(range(8))
        assert whys(repo) == ["step 5 came out otherwise than before the run was resumed"]
        assert old not in line(repo)
        assert same(repo.checkout("step:5"), weights[5])


def test_a_second_script_does_not_move_the_branch_of_the_first(tmp_path):
    with deltavc.init("memory://second-script") as repo:
        run(tmp_path, DeltavcCallback(repo), {4: crash}, max_steps=5)
        callback = DeltavcCallback(repo)
        then = {1: lambda model: repo.commit(model, step=4), 2: spoil}  # the first goes on, and the second differs
        trainer = make_trainer(tmp_path, callback, Spy(then), max_steps=5)
        with pytest.raises(BranchMoved):
            trainer.train(resume_from_checkpoint=callback.checkpoint())
        assert repo.version("main").step == 4


def test_a_rule_may_hold_at_a_step_that_was_made_before_the_run_was_resumed(tmp_path):
    with deltavc.init("memory://new-rule") as repo:
        run(tmp_path, DeltavcCallback(repo), {4: crash}, max_steps=4)
        new = DeltavcCallback(repo, rollback_if=lambda metrics: metrics["epoch"] == 0.5)
        run(tmp_path, new, max_steps=4)
        assert [version.step for version in line(repo)] == [0, 3, 4]


def test_a_run_that_has_gone_bad_is_rolled_back_and_goes_on(tmp_path):
    with deltavc.init("memory://gone-bad") as repo:
        callback = DeltavcCallback(repo, state_every=2, rollback_if=nan_gradients)
        trainer, again = run(tmp_path, callback, {6: spoil})
        assert [version.step for version in line(repo)] == [0, 1, 2, 3, 4, 7, 8, 9, 10]
        assert len(whys(repo)) == 1
        assert whys(repo)[0].startswith("rollback_if held at step 6: loss=")
        bad = next(version for version in repo.log(all=True) if version.step == 6)
        assert same(repo.checkout(bad.id), again[6])
        assert math.isnan(bad.metrics["grad_norm"])
        assert same(repo.checkout("main"), weights_of(trainer.model))
        moved = optimizer_of(trainer)
        assert all(step == 8 for name, step in moved.items() if name.endswith(".step"))  # of ten, two were undone
        assert trainer.lr_scheduler.last_epoch == 8
        assert all(tensor.isfinite().all() for tensor in (*moved.values(), *weights_of(trainer.model).values()))

        # Killed between the commit of the bad step and the way back, it would not resume from the bad step.
        repo.rollback("main", to=bad.id)
        DeltavcCallback(repo).checkpoint(path=tmp_path / "resumes")
        assert json.loads((tmp_path / "resumes" / "trainer_state.json").read_text())["global_step"] == 4
        repo.rollback("main", to="main@{1}")

        # The same run, killed after it was rolled back: what is computed again goes bad and is rolled back again.
        with deltavc.init("memory://gone-bad-and-killed") as other:
            run(tmp_path, DeltavcCallback(other, state_every=4, rollback_if=nan_gradients), {6: spoil, 8: crash})
            assert [version.step for version in line(other)] == [0, 1, 2, 3, 4, 7]
            resumed, _ = run(tmp_path, DeltavcCallback(other, state_every=4, rollback_if=nan_gradients), {6: spoil})
            assert same(weights_of(resumed.model), weights_of(trainer.model))
            assert same(optimizer_of(resumed), moved)
            assert [v.fingerprint for v in line(other)] == [v.fingerprint for v in line(repo)]
            assert len(whys(other)) == 1


def test_a_run_that_stays_bad_ends_at_the_last_good_version(tmp_path):
    with deltavc.init("memory://stays-bad") as repo:
        callback = DeltavcCallback(
            repo, state_every=2, rollback_if=lambda metrics: metrics["epoch"] > 1, rollback_to="step:2", max_rollbacks=2
        )
        spy = Spy()
        trainer = make_trainer(tmp_path, callback, spy)
        with pytest.raises(RolledBackTooOften) as caught:
            trainer.train()
        callback.close()
        assert (caught.value.step, caught.value.times) == (2, 3)
        assert repo.version("main").step == 2
        assert same(weights_of(trainer.model), spy.weights[2])


def test_a_rollback_ends_at_weights_that_the_rule_was_asked_about(tmp_path):
    with deltavc.init("memory://asked-about") as repo:
        callback = DeltavcCallback(repo, state_every=2, rollback_if=nan_gradients)
        trainer, _ = run(tmp_path, callback, {5: spoil}, logging_steps=4, max_steps=8)
        assert [version.step for version in line(repo)] == [0, 1, 2, 3, 4]  # 6 keeps the state, and was bad already
        assert all(tensor.isfinite().all() for tensor in weights_of(trainer.model).values())


def test_a_run_that_was_over_stays_as_it_is_when_it_is_started_again(tmp_path, caplog):
    with deltavc.init("memory://over") as repo:
        told = {"max_steps": 2, "lr_scheduler_type": "constant"}
        first, _ = run(tmp_path, DeltavcCallback(repo), **told)
        before = repo.reflog("main")
        again, _ = run(tmp_path, DeltavcCallback(repo), **told)
        assert repo.reflog("main") == before
        assert same(weights_of(again.model), weights_of(first.model))
        assert same(optimizer_of(again), optimizer_of(first))
        assert again.state.global_step == 2
        assert "main was over at step 2" in caplog.text


@pytest.mark.long
def test_a_run_that_was_over_at_the_end_of_an_epoch_goes_on_with_more_steps_as_if_it_had_had_them(tmp_path):
    told = {"train_sampling_strategy": "group_by_length", "lr_scheduler_type": "constant"}
    with deltavc.init("memory://more-steps") as repo, deltavc.init("memory://all-steps") as straight:
        trainer, _ = run(tmp_path, DeltavcCallback(straight, state_every=3), max_steps=8, **told)
        run(tmp_path, DeltavcCallback(repo, state_every=3), max_steps=STEPS_PER_EPOCH, **told)
        run(tmp_path, DeltavcCallback(repo, state_every=3), {8: crash}, max_steps=8, **told)
        resumed, weights = run(tmp_path, DeltavcCallback(repo, state_every=3), max_steps=8, **told)
        assert min(weights) == 6
        assert same(weights_of(resumed.model), weights_of(trainer.model))
        assert [v.fingerprint for v in line(repo)] == [v.fingerprint for v in line(straight)]


def test_metrics_between_commits_come_with_the_next_and_the_last_step_always_comes(tmp_path):
    with deltavc.init("memory://every-third") as repo:
        callback = DeltavcCallback(repo, every=3, state_every=2)
        arguments = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 4, "load_best_model_at_end": True}
        make_trainer(tmp_path, callback, save_strategy="steps", save_steps=2, **arguments).train()
        found = line(repo)
        assert [version.step for version in found] == [0, 3, 6, 9, 10]
        assert ["loss" in version.metrics for version in found] == [False, False, True, True, False]
        assert all("eval_loss" in version.metrics for version in found[1:])
        assert "train_runtime" not in found[-1].metrics
        assert ["optimizer.pt" in version.files for version in found] == [True, False, True, False, True]


def test_tensors_of_one_number_may_be_logged(tmp_path):
    with deltavc.init("memory://logged") as repo:
        norm = Spy({2: lambda model: trainer.log({"norm": torch.tensor(2.0)})})
        trainer = make_trainer(tmp_path, DeltavcCallback(repo), norm, max_steps=2)
        trainer.train()
        assert repo.version("main").metrics["norm"] == 2
        state = json.loads(repo.read_file("main", "trainer_state.json"))
        assert [told["norm"] for told in state["log_history"] if "norm" in told] == [2]


def test_versions_in_another_dtype_keep_the_weights_as_they_are_trained(never_killed, tmp_path):
    _, weights, _ = never_killed
    with deltavc.init("memory://halves") as repo:
        told = {"state_every": 4, "dtype": "bfloat16"}
        run(tmp_path, DeltavcCallback(repo, **told), {7: crash})
        trainer, _ = run(tmp_path, DeltavcCallback(repo, rollback_if=nan_gradients, **told), max_steps=10)
        assert same(weights_of(trainer.model), weights[10])
        for version in line(repo):
            halves = {name: tensor.bfloat16() for name, tensor in weights[version.step].items()}
            assert same(repo.checkout(version.id), halves)
        assert whys(repo) == []
        assert [version.step for version in line(repo) if "masters.pt" in version.files] == [0, 4, 8, 10]


def test_a_run_with_a_dtype_is_rolled_back_to_the_weights_as_they_were_trained(tmp_path):
    with deltavc.init("memory://halves-back") as repo:
        callback = DeltavcCallback(repo, state_every=2, dtype=torch.bfloat16, rollback_if=nan_gradients)
        trainer, weights = run(tmp_path, callback, {3: spoil}, max_steps=3)
        assert repo.version("main").step == 2
        assert same(weights_of(trainer.model), weights[2])

        # Weights that only look like these when they are rounded are not those to go on from.
        repo.checkout("main", path=tmp_path / "rounded")
        with pytest.raises(BranchTaken, match="other weights"):
            make_trainer(tmp_path, DeltavcCallback(repo, dtype="bfloat16")).train(str(tmp_path / "rounded"))


def test_a_run_does_not_go_on_from_what_it_is_not(tmp_path):
    with deltavc.init("memory://taken") as repo:
        run(tmp_path, DeltavcCallback(repo), max_steps=2)
        before = repo.reflog("main")
        callback = DeltavcCallback(repo)
        trainer = make_trainer(tmp_path, callback)
        with pytest.raises(BranchTaken, match="begins with step 0"):
            trainer.train()
        callback.checkpoint()
        with pytest.raises(BranchTaken):
            trainer.train()
        with pytest.raises(UnknownRef):
            callback.checkpoint("step:7")
        assert repo.reflog("main") == before

        run(tmp_path, DeltavcCallback(repo, branch="other"), max_steps=2)  # beside it is room
        assert [version.step for version in line(repo, "other")] == [0, 1, 2]
        assert repo.version("other").fingerprint == repo.version("main").fingerprint
        run(tmp_path, DeltavcCallback(repo, branch="third"), ref="main@step:1", max_steps=3)
        assert line(repo, "third")[1] == repo.version("main@step:1")
        assert repo.version("third").step == 3


def test_a_run_does_not_resume_from_a_version_that_keeps_a_part_of_the_state(tmp_path):
    with deltavc.init("memory://a-part") as repo:
        trainer, _ = run(tmp_path, DeltavcCallback(repo), max_steps=2)
        state = repo.read_file("main", "trainer_state.json")  # all that `deltavc commit`, or `import`, takes of it
        repo.commit(trainer.model, step=2, files={"trainer_state.json": state})
        resumed, _ = run(tmp_path, DeltavcCallback(repo), max_steps=2)
        assert same(optimizer_of(resumed), optimizer_of(trainer))
        repo.commit(trainer.model, "imported", parents=[], step=2, files={"trainer_state.json": state})
        with pytest.raises(UnknownRef, match="trainer's state"):
            DeltavcCallback(repo, "imported").checkpoint()


def test_a_commit_of_somebody_else_ends_the_run(tmp_path):
    with deltavc.init("memory://somebody-else") as repo:
        callback = DeltavcCallback(repo)
        trainer = make_trainer(tmp_path, callback, Spy({4: lambda model: repo.rollback("main", to="step:1")}))
        with pytest.raises(BranchMoved):
            trainer.train()
        callback.close()
        assert repo.version("main").step == 1


class Outage(TrainerCallback):
    """The store takes nothing while some steps are committed."""

    def __init__(self, repo, steps, **down):
        self.repo, self.steps, self.how = repo, steps, down or {"names": WRITES}
        self.down = contextlib.ExitStack()

    def on_step_begin(self, args, state, control, **kwargs):
        self.down.close()
        if state.global_step in self.steps:
            while self.repo.version("main").step < state.global_step - 1:
                time.sleep(0.01)
            self.down.enter_context(self.repo.store.down(**self.how))


@pytest.fixture
def unsteady(request):
    """A repository in a store that can fail."""
    url = f"memory://{request.node.name}"
    deltavc.init(url).close()
    with opened(FaultyStore(open_store(url))) as repo:
        repo.store = repo._store
        yield repo


def test_a_step_that_the_store_does_not_take_ends_the_run_at_the_next(unsteady, tmp_path):
    callback = DeltavcCallback(unsteady)
    trainer = make_trainer(tmp_path, Outage(unsteady, {3}), callback)
    with pytest.raises(StoreUnavailable):
        trainer.train()
    assert trainer.state.global_step == 4
    callback.close()
    assert unsteady.version("main").step == 2


def test_a_step_whose_fate_the_store_does_not_tell_is_settled_at_the_next(never_killed, unsteady, tmp_path, caplog):
    lost = Outage(unsteady, {6}, how="after", when=lambda key: key.startswith("refs/"))
    make_trainer(tmp_path, lost, DeltavcCallback(unsteady)).train()
    told = [(version.step, version.fingerprint) for version in line(never_killed[2].repo)]
    assert [(version.step, version.fingerprint) for version in line(unsteady)] == told
    assert "is not known" in caplog.text


def test_a_run_may_go_on_without_the_steps_that_the_store_did_not_take(never_killed, unsteady, tmp_path, caplog):
    _, weights, _ = never_killed
    callback = DeltavcCallback(unsteady, state_every=3, on_error="log")
    make_trainer(tmp_path, Outage(unsteady, {2, 6}), callback).train()
    found = line(unsteady)
    assert [version.step for version in found] == [0, 1, 3, 4, 5, 7, 8, 9, 10]
    assert [version.step for version in found if "optimizer.pt" in version.files] == [0, 3, 7, 9, 10]
    assert all(same(unsteady.checkout(version.id), weights[version.step]) for version in found)
    assert "the commit of step 6 failed, and the run goes on" in caplog.text


def test_a_model_in_parts_is_refused(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        trainer = make_trainer(tmp_path, DeltavcCallback(tmp_path / "repo"))
        fully_shard(trainer.model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(BadState, match="in parts"):
            trainer.train()
        assert not (tmp_path / "repo").exists()
    finally:
        dist.destroy_process_group()


def test_batches_that_would_not_come_again_are_told_of(tmp_path, caplog):
    with deltavc.init("memory://drawn") as repo:
        trainer = make_trainer(tmp_path, DeltavcCallback(repo, state_every=2), max_steps=3)
        trainer.train()
        assert not caplog.records
        plain = trainer.data_collator
        trainer = make_trainer(tmp_path, DeltavcCallback(repo, "drawn", state_every=2), max_steps=3)
        trainer.data_collator = lambda rows: plain(rows) if torch.rand(()) < 2 else None
        trainer.train()
        assert [record.getMessage()[:20] for record in caplog.records] == ["random numbers are d"]


def test_a_checkpoint_may_be_written_anywhere(never_killed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with deltavc.init("memory://anywhere") as repo:
        run("out", DeltavcCallback(repo, state_every=4), {7: crash})
        assert DeltavcCallback(repo).checkpoint("step:5", tmp_path / "step5") == str(tmp_path / "step5")
        assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= set(os.listdir("step5"))
        repo.rollback("main", to="main@{1}")

        callback = DeltavcCallback(repo)
        trainer = make_trainer("out")
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=callback.checkpoint())
        check_same_run(trainer, repo, never_killed)
        assert not os.path.exists("deltavc-resume")


def test_the_callback_refuses_what_makes_no_sense():
    for told in ({"every": 0}, {"state_every": 0}, {"max_rollbacks": 0}, {"on_error": "ignore"}):
        with pytest.raises(ValueError, match=next(iter(told))):
            DeltavcCallback("unused", **told)
