"""What vLLM is given is what it was recorded to take, and its own weight updates end well or change nothing."""

import inspect
import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import deltavc
from deltavc.integrations import vllm
from deltavc.integrations.engines import Order, Report
from tests.integrations.standin_engine import CONTRACTS, engine
from tests.integrations.standin_layers import Shape, checkpoint
from tests.integrations.standin_worker import engine_base, module

ROOT = Path(__file__).parents[2]
CONTRACT = json.loads((CONTRACTS / "vllm.json").read_text())


@pytest.fixture
def imported(monkeypatch):
    """The modules of vLLM that deltavc imports, with what was recorded of them."""
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    registered = {}
    factory = SimpleNamespace(
        _registry=registered, register_engine=lambda *args: registered.update({args[0]: args[1:]})
    )
    with monkeypatch.context() as context:
        context.setattr(sys, "modules", dict(sys.modules))
        base = module("vllm.distributed.weight_transfer.base")
        base.WeightTransferEngine = engine_base(CONTRACT)
        base.WeightTransferInitInfo = base.WeightTransferUpdateInfo = type("Info", (), {})
        module("vllm.distributed.weight_transfer.factory", WeightTransferEngineFactory=factory)
        yield registered


def test_the_plugin_registers_the_engine_once_however_often_it_is_called(imported):
    vllm.register()
    vllm.register()
    assert imported == {"deltavc": ("deltavc.integrations.vllm_engine", "DeltavcWeightTransferEngine")}
    assert CONTRACT["register_engine"] == ["cls", "name", "module_path_or_cls", "class_name"]


def test_the_engine_has_every_method_as_it_is_called(imported):
    from deltavc.integrations.vllm_engine import DeltavcWeightTransferEngine

    assert not DeltavcWeightTransferEngine.__abstractmethods__
    for name, parameters in CONTRACT["engine_methods"].items():
        if name in vars(DeltavcWeightTransferEngine):
            assert [*inspect.signature(getattr(DeltavcWeightTransferEngine, name)).parameters] == parameters
    assert {*CONTRACT["engine_abstract"]} <= vars(DeltavcWeightTransferEngine).keys()


def test_the_extension_adds_one_method_that_workers_do_not_have():
    added = {name for name in dir(vllm.WorkerExtension) if not name.startswith("__")}
    assert added == {"deltavc_order"}
    assert not added & {*CONTRACT["worker_attributes"]}
    assert {"get_model", "vllm_config"} <= {*CONTRACT["worker_attributes"]}


def test_entry_points_lead_to_the_plugins():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert found["vllm.general_plugins"] == {"deltavc": "deltavc.integrations.vllm:register"}
    assert found["sglang.srt.plugins"] == {"deltavc": "deltavc.integrations.sglang:register"}


def test_vllms_own_weight_updates_move_or_raise_on_the_last_worker_alone(tmp_path):
    with deltavc.init(tmp_path / "runs") as repo, engine("vllm") as served:
        with repo.writer("main") as writer:
            first, *_, last = [writer.commit(checkpoint(Shape(), step), step=step).id for step in range(3)]
        asked = {"repository": repo.url, "at": last, "timeout": 20.0}
        assert [type(each) for each in served.do("update_weights", {"version": last})] == [type(None), RuntimeError]
        assert [type(each) for each in served.do("init_weight_transfer_engine", asked)] == [type(None), RuntimeError]
        assert served.do("init_weight_transfer_engine", asked | {"at": first}) == [None, None]
        assert served.do("update_weights", {"version": last, "action": "stage"}) == [None, None]
        assert served.holds(checkpoint(Shape(), 0))
        assert served.do("update_weights", {"version": last, "action": "apply"}) == [None, None]
        assert served.holds(checkpoint(Shape(), 2))
        ok, error = served.do("update_weights", {"version": "f" * 64})
        assert ok is None
        assert "unknown_ref" in str(error)
        assert served.holds(checkpoint(Shape(), 2))
        assert served.do("shutdown_weight_transfer_engine") == [None, None]
        assert served.do("init_weight_transfer_engine", asked) == [None, None]
        assert served.do("update_weights", {"version": first}) == [None, None]
        assert served.holds(checkpoint(Shape(), 0))


def test_a_worker_that_is_left_alone_moves_nothing_and_says_who_is_silent(tmp_path):
    with deltavc.init(tmp_path / "runs") as repo, engine("vllm") as served:
        with repo.writer("main") as writer:
            first, second = (writer.commit(checkpoint(Shape(), step), step=step).id for step in range(2))

        def order(action, version, timeout, rank=None):
            text = Order(action, repo.url, version, first, timeout=timeout).to_json()
            return Report.from_json(served.do("rpc", "deltavc_order", [text], rank=rank)[0])

        assert order("move", second, 20.0).version == second
        assert isinstance(served.do("die", rank=1)[0], EOFError)
        before = served.do("parameters", rank=0)
        report = order("move", first, 1.0, rank=0)  # and it takes seconds, not twenty
        assert report.failed.failure == "group_broken"
        assert [worker.state for worker in report.workers] == ["serving", "silent"]
        assert report.version is None
        assert served.do("parameters", rank=0) == before


def test_more_copies_than_one_are_refused():
    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=2))
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "modules", dict(sys.modules))
        module("vllm.distributed.parallel_state", get_world_group=lambda: None)
        report = vllm.order_for(lambda: None, config, Order("status", "runs").to_json())
    assert "2 data-parallel copies" in report.failed.reason
