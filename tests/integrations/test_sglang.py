"""What SGLang is given is what it was recorded to take, and nothing of it raises into the engine."""

import inspect
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from deltavc.integrations import sglang
from deltavc.integrations.engines import Order, Report
from deltavc.integrations.sglang_client import TENSOR
from tests.integrations.standin_engine import CONTRACTS
from tests.integrations.standin_worker import module

CONTRACT = json.loads((CONTRACTS / "sglang.json").read_text())


def tensor_of(text):
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


@pytest.fixture
def groups(monkeypatch):
    """SGLang's groups, of a worker that is alone; give it pipeline stages by `stages`."""
    found = SimpleNamespace(stages=1)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    get_pp_group = lambda: SimpleNamespace(world_size=found.stages)  # noqa: E731
    module("sglang.srt.distributed", get_pp_group=get_pp_group, get_tp_group=lambda: SimpleNamespace(cpu_group=None))
    return found


def test_the_loader_takes_what_it_is_called_with():
    assert CONTRACT["loader_is_called_with"] == ["self.get_model()", "named_tensors"]
    assert [*inspect.signature(sglang.load).parameters] == ["model", "named_tensors"]


def test_the_plugin_hooks_the_method_that_calls_the_loader(monkeypatch):
    hooks = []
    registry = SimpleNamespace(register=lambda *args: hooks.append(args))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    kinds = SimpleNamespace(**{name: name for name in CONTRACT["hook_types"]})
    module("sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=kinds)
    sglang.register()
    assert CONTRACT["hook_register"][1:4] == ["target", "hook", "hook_type"]
    assert hooks == [(sglang.HOOKED, sglang.told, "AFTER")]
    assert sglang.HOOKED.rpartition(".")[2] in CONTRACT


@pytest.mark.parametrize(
    ("named", "stages", "says"),
    [
        ([("model.norm.weight", torch.zeros(3))], 1, "model.norm.weight"),
        ([], 1, "nothing"),
        ([(TENSOR, tensor_of("not JSON"))], 1, "no order"),
        ([(TENSOR, tensor_of('{"deltavc": 99, "action": "stage"}'))], 1, "speech 99"),
        ([(TENSOR, tensor_of('{"deltavc": 1, "action": "burn", "repository": "x"}'))], 1, "burn"),
        ([(TENSOR, tensor_of(Order("status", "runs").to_json()))], 2, "2 pipeline stages"),
        ([(TENSOR, tensor_of(Order("status", "runs").to_json()))], 1, "process group"),
    ],
)
def test_whatever_it_is_given_the_loader_answers_and_does_not_raise(groups, named, stages, says):
    groups.stages = stages
    model = torch.nn.Linear(2, 2)
    updater = SimpleNamespace(get_model=lambda: model)
    assert sglang.load(model, named) is None
    success, message = sglang.told((True, "Success"), updater, named_tensors=named, load_format=sglang.LOADER)
    assert not success
    assert says in Report.from_json(json.loads(message)).failed.reason


def test_updates_of_others_are_answered_as_ever(groups):
    model = torch.nn.Linear(2, 2)
    updater = SimpleNamespace(get_model=lambda: model)
    sglang.load(model, [])
    assert sglang.told((True, "Success"), updater, named_tensors=[], load_format=None) is None
    assert sglang.told((True, "Success"), updater, [], "direct") is None
    assert sglang.told((True, "Success"), updater, [], sglang.LOADER)[0] is False
    assert sglang.told((True, "Success"), updater, [], sglang.LOADER) is None
