"""What only the device's own allocator can tell."""

import torch

from tests.kernels.gpu.placed import DEVICE
from tests.replica.samples import line_of
from tests.states import random_bits


def test_staging_again_and_again_reserves_no_more_memory(tmp_path):
    state = {"a": random_bits("bfloat16", (1000, 2000), 1)}
    with line_of(tmp_path / "repo", 2, state, 0.1) as (repo, versions):
        live = {name: tensor.to(DEVICE).clone() for name, tensor in versions[repo.resolve("main")].items()}
        with repo.replica(live, at="main") as replica:
            reserved = []
            for number in range(80):
                replica.move(f"main~{(number + 1) % 2}")
                reserved.append(torch.cuda.memory_reserved(DEVICE))
        assert reserved[-1] == reserved[5]
