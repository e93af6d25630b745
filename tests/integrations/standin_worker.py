"""A worker of an engine, as far as it calls deltavc: a real process of a real process group, with a rank's model.

SGLang's calls the loader within a weight update, does not look at what it returns, and ends when it raises. vLLM's has
the worker extension as a base, and its weight-transfer engine beside it.
"""

import base64
import contextlib
import os
import pickle
import sys
import types
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

from tests.integrations.standin_layers import checkpoint, served


def main(pipe, port, engine, shape, contract):
    """Do what comes through the pipe: the name of a method, and its arguments."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    world = shape.size * shape.stages
    rank = shape.stage * shape.size + shape.rank
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    worker = {"sglang": SGLangWorker, "vllm": vllm_worker}[engine](shape, contract)
    with contextlib.suppress(EOFError):
        while True:
            name, args = pipe.recv()
            try:
                found = getattr(worker, name)(*args)
            except Exception as error:
                found = error
            pipe.send(found)
    os._exit(0)


class Weights:
    """What a test does to a worker's weights and wants to know of them."""

    def parameters(self):
        return {name: value.view(torch.int16).numpy().tobytes() for name, value in self.get_model().named_parameters()}

    def spoil(self, name):
        """Write to every weight of a parameter, as nobody may."""
        dict(self.get_model().named_parameters())[name].data.view(torch.int16).add_(1)

    def spoil_next(self, name):
        """Spoil a parameter when the next order to swap comes, just before it is carried out."""
        self._spoiling = name

    def spoil_now(self, order):
        if b'"apply"' in order and (name := getattr(self, "_spoiling", None)):
            self._spoiling = None
            self.spoil(name)

    def change_directory(self, path):
        os.chdir(path)

    def die(self):
        os._exit(1)


class SGLangWorker(Weights):
    """A scheduler of SGLang in one tensor-parallel rank."""

    def __init__(self, shape, contract):
        self._shape = shape
        self._model = served("sglang", shape, checkpoint(shape, 0))
        module("sglang.srt.distributed", get_tp_group=lambda: _group(shape.size), get_pp_group=lambda: _group(1))
        from deltavc.integrations import sglang

        assert contract["hook_types"].count("AFTER") == 1
        self._loaders = {sglang.LOADER: sglang.load}
        self._after = sglang.told

    def get_model(self):
        return self._model

    def update(self, serialized, load_format, tells):
        """Returns whether it succeeded, and a message, which only rank 0 sends.

        Args:
            tells: whether the plugin is loaded.
        """
        named = pickle.loads(base64.b64decode(serialized))
        self.spoil_now(bytes(named[0][1].numpy()))
        self._loaders[load_format](self.get_model(), named)
        result = True, "Success"
        changed = self._after(result, self, named_tensors=named, load_format=load_format) if tells else None
        dist.barrier()
        return result if changed is None else changed


def vllm_worker(shape, contract):
    """A worker of vLLM, with the extension among its bases as vLLM puts it there."""
    rank, world = dist.get_rank(), dist.get_world_size()
    module("vllm.distributed.parallel_state", get_world_group=lambda: _group(world))
    base = module("vllm.distributed.weight_transfer.base")
    base.WeightTransferEngine = engine_base(contract)
    base.WeightTransferInitInfo = base.WeightTransferUpdateInfo = type("Info", (), {})
    from deltavc.integrations.vllm import WorkerExtension

    class Worker(Weights):
        def __init__(self):
            parallel = SimpleNamespace(rank=rank, world_size=world, data_parallel_size=1)
            self.vllm_config = SimpleNamespace(parallel_config=parallel, model_config=None)
            self._model = served("vllm", shape, checkpoint(shape, 0))
            from deltavc.integrations.vllm_engine import DeltavcWeightTransferEngine as Made

            config = SimpleNamespace(backend="deltavc")
            self._engine = Made(config, self.vllm_config, torch.device("cpu"), self._model)

        def get_model(self):
            return self._model

        def rpc(self, method, args):
            if method == "deltavc_order":
                self.spoil_now(args[0].encode())
            return getattr(self, method)(*args)

        def init_weight_transfer_engine(self, init_info):
            self._engine.init_transfer_engine(self._engine.parse_init_info(init_info))

        def update_weights(self, update_info):
            self._engine.update_weights(update_info)

        def shutdown_weight_transfer_engine(self):
            self._engine.shutdown()

    assert not {name for name in dir(WorkerExtension) if not name.startswith("__")} & {*contract["worker_attributes"]}
    Worker.__bases__ = (*Worker.__bases__, WorkerExtension)
    return Worker()


def engine_base(contract):
    """The base class of weight-transfer engines, with the methods that were recorded."""
    from abc import ABC, abstractmethod
    from typing import Generic, TypeVar

    class WeightTransferEngine(ABC, Generic[TypeVar("Init"), TypeVar("Update")]):
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
            self.parallel_config = vllm_config.parallel_config

        def parse_init_info(self, init_dict):
            return self.init_info_cls(**init_dict)

        def update_weights(self, update_info):
            self.receive_weights(self.update_info_cls(**update_info))

    for name in contract["engine_abstract"]:
        setattr(WeightTransferEngine, name, abstractmethod(lambda self, *args: None))
    WeightTransferEngine.__abstractmethods__ = frozenset(contract["engine_abstract"])
    return WeightTransferEngine


def _group(size):
    return SimpleNamespace(world_size=size, cpu_group=dist.group.WORLD)


def module(path, **members):
    """A module of an engine that is not installed, with what deltavc imports of it."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    vars(sys.modules[path]).update(members)
    return sys.modules[path]
