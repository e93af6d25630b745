"""A hundred real steps with a bad one among them: found in seven tries, in Python and in a shell."""

import json
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch
from click.testing import CliRunner
from deltavc.cli.main import main
from safetensors.numpy import load_file

import deltavc
from tests.bisect import training
from tests.bisect.training import BAD, loss_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    url = tmp_path_factory.mktemp("training") / "repo"
    model = training.train(url)
    with deltavc.open(url) as repo:
        yield SimpleNamespace(url=url, repo=repo, model=model)


def is_bad(model, version):
    return loss_of(model) > 2


def test_the_bad_step_is_found_on_a_live_model_in_seven_tries_at_most(trained):
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    found = trained.repo.bisect(is_bad, good="step:0", into=trained.model)
    assert found.first_bad.step == BAD
    assert len(found.evaluations) <= 7
    assert found.changed.total.density > 0.9
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.model.state_dict().items())


def test_and_on_tensors_in_memory(trained):
    def bad(state, version):
        return is_bad(lambda inputs: torch.func.functional_call(training.model(), dict(state), (inputs,)), version)

    found = trained.repo.bisect(bad, good="step:0")
    assert found.first_bad.step == BAD
    assert len(found.evaluations) <= 7


EVALUATE = """
import sys, numpy
from safetensors.numpy import load_file
inputs, labels = numpy.load("inputs.npy"), numpy.load("labels.npy")
w = load_file(sys.argv[1] + "/model.safetensors")
logits = numpy.tanh(inputs @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]
logits -= logits.max(1, keepdims=True)
loss = numpy.log(numpy.exp(logits).sum(1)) - logits[numpy.arange(len(labels)), labels]
sys.exit(int(loss.mean() > 2))
"""


def test_and_in_a_shell_with_what_changed_and_the_way_back(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, tensor in zip(("inputs", "labels"), training.data(), strict=True):
        numpy.save(f"{name}.npy", tensor.numpy())
    (tmp_path / "evaluate.py").write_text(EVALUATE)

    def run(*args):
        done = CliRunner().invoke(main, ["bisect", *args, "--repo", str(trained.url), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    started = run("start", "main", "step:0", "--into", "tries")
    assert (started["status"], started["num_suspects"]) == ("trying", 100)
    options = ["--repo", str(trained.url), "--json", sys.executable, "evaluate.py", "{path}"]
    done = CliRunner().invoke(main, ["bisect", "run", *options])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["status"], found["first_bad"]["step"], found["before"]["step"]) == ("found", BAD, BAD - 1)
    assert found["first_bad"]["metrics"]["loss"] > 2
    assert len(found["evaluations"]) <= 7
    assert {tensor["name"] for tensor in found["changed"]["tensors"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert found["rollback"].startswith(f"deltavc --repo {trained.url} rollback main --to {found['before']['id'][:12]}")
    assert (tmp_path / "tries" / "config.json").read_bytes() == training.CONFIG
    assert load_file(tmp_path / "tries" / "model.safetensors").keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
