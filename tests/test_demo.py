"""The demo's own run, shorter: what it claims, and the sizes that deltavc promises on real training."""

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

import deltavc

STEPS, SPOIL = 6, 4


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", Path(__file__).parent.parent / "examples" / "demo.py")
    module = sys.modules["demo"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "repo"


@pytest.fixture(scope="module")
def console():
    return Console(file=io.StringIO(), width=100)


@pytest.fixture(scope="module")
def done(demo, folder, console):
    return demo.run(folder, console, steps=STEPS, spoil=SPOIL)


@pytest.fixture
def repo(done, folder):
    with deltavc.open(folder) as repo:
        yield repo


def frames_nbytes(folder, version):
    """Bytes of the frames of a version's delta, as its edge says."""
    edges = [json.loads(path.read_bytes()) for path in (folder / "edges" / version.id).iterdir()]
    return sum(edge["nbytes"] for edge in edges if edge["base"] is not None)


def test_frames_are_at_most_58_percent_of_zstd_on_a_dense_xor(done, folder):
    frames = sum(frames_nbytes(folder, step.version) for step in done.steps)
    assert 0 < frames <= 0.58 * sum(step.xor_zstd for step in done.steps)


def test_everything_added_is_at_most_61_percent_of_zstd_on_a_dense_xor(done):
    added = sum(step.added for step in done.steps)
    assert 0 < added <= 0.61 * sum(step.xor_zstd for step in done.steps)


def test_a_snapshot_is_at_most_69_percent_of_the_weights(done):
    assert 0 < done.first.stored_bytes <= 0.69 * 2 * done.first.num_lanes


def test_even_the_step_that_changed_whole_layers_is_smaller_than_by_other_means(done):
    (bad,) = (step for step in done.steps if step.undone)
    assert bad.version.changed_lanes > 0.1 * bad.version.num_lanes
    assert bad.added < min(bad.xor_zstd, bad.int32_and_values, bad.full)


def test_the_spoiled_step_is_worse_and_only_the_reflog_and_its_id_still_lead_to_it(done, repo):
    (bad,) = (step.version for step in done.steps if step.undone)
    assert bad.metrics["held_out_loss"] > 1.1 * done.first.metrics["held_out_loss"]
    assert bad.id not in {version.id for version in repo.log("main")}
    assert bad.id in {version.id for version in repo.log(all=True)}
    assert repo.resolve(bad.short_id) == bad.id
    assert [entry.why for entry in repo.reflog("main") if entry.old == bad.id] == ["held-out loss jumped"]


def test_training_goes_on_from_the_step_before_the_spoiled_one(done, repo):
    history = repo.log("main")
    assert [version.step for version in history] == [*range(STEPS, -1, -1)]
    bad = next(step.version for step in done.steps if step.undone)
    again = next(version for version in history if version.step == SPOIL)
    assert again.parents == bad.parents == (repo.resolve(f"step:{SPOIL - 1}"),)
    assert history[0].metrics["held_out_loss"] < 1.02 * done.first.metrics["held_out_loss"]


def test_the_head_is_what_is_live(demo, done, repo):
    assert demo.same_bits(repo.checkout("main"), demo.copied(done.trainer.live))
    assert [version.step for version in repo.identify(done.trainer.live)] == [STEPS]


def test_checkouts_are_bit_for_bit_what_was_kept_aside(demo, done, folder):
    assert len(done.kept) >= 4
    demo.compare(folder, done.kept)


def test_a_copy_that_differs_in_the_sign_of_a_zero_is_noticed(demo, done, folder):
    version, state = next(iter(done.kept.items()))
    zero, minus = torch.zeros(1, dtype=torch.bfloat16), -torch.zeros(1, dtype=torch.bfloat16)
    assert not demo.same_bits({"w": zero}, {"w": minus})
    name = next(iter(state))
    changed = state | {name: demo.bits(state[name]).bitwise_xor(1).view(torch.bfloat16)}
    with pytest.raises(SystemExit, match="came back different"):
        demo.compare(folder, {version: changed})


def test_the_tables_show_every_step(demo, done, console):
    console.print(demo.size_table(done.steps))
    text = console.file.getvalue()
    assert f"Step {SPOIL} went wrong" in text
    assert f"{SPOIL}*" in text
    assert "sum" in text


def test_a_folder_that_no_run_made_is_left_alone(demo, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit, match="not made by this demo"):
        demo.fresh_folder(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_an_earlier_runs_repository_makes_room(demo, tmp_path):
    repo = demo.fresh_folder(tmp_path / "out")
    repo.mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert demo.fresh_folder(tmp_path / "out") == repo
    assert not repo.exists()
    assert (tmp_path / "out" / "notes.txt").exists()
