"""A replica moves live tensors on the device: gathered, swapped and proven by the kernels for it."""

import pytest
import torch

from deltavc.errors import ForeignWrite
from deltavc.kernels import gpu as kernels
from deltavc.kernels import many, swapping
from tests.kernels.gpu.placed import DEVICE
from tests.replica.samples import line_of
from tests.states import random_bits, same


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    """Without a device, have the interpreter take CPU tensors."""
    if DEVICE.type == "cpu":
        for module in (many, swapping):
            monkeypatch.setattr(module, "gpu", lambda device: kernels)


@pytest.mark.parametrize("density", [0.02, 0.8])
def test_moves_are_exact_and_foreign_writes_noticed(tmp_path, density):
    state = {"a": random_bits("bfloat16", (30, 20), 1), "b": random_bits("float32", (50,), 2), "c": torch.tensor(1.5)}
    with line_of(tmp_path / "repo", 3, state, density) as (repo, versions):
        start = versions[repo.resolve("main")]
        # The first lies transposed, and listed lanes have to find their way through its strides.
        live = {name: tensor.to(DEVICE).clone() for name, tensor in start.items()}
        live["a"] = live["a"].t().contiguous().t()
        with repo.replica(live, at="main") as replica:
            for ref in ("main~2", "main", "main~1"):
                replica.move(ref)
                assert same({name: tensor.cpu() for name, tensor in live.items()}, versions[replica.version])
            replica.verify()
            replica.stage("main").wait()
            live["a"].view(torch.int16).bitwise_xor_(1)
            with pytest.raises(ForeignWrite, match="'a'"):
                replica.apply()
