"""Models as torch spreads them: FSDP2, tensor parallel, both, with uneven and replicated parts."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import deltavc
from deltavc.errors import BadState
from tests.replica.ranks import ends_of, in_ranks
from tests.states import same

SIZE = 4


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 32)  # torch's tensor parallel layers train on even parts only
        self.down = nn.Linear(32, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """Small, with uneven lengths, a buffer, and tied embeddings."""

    def __init__(self, width=10, words=23):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def fsdp(model):
    mesh = init_device_mesh("cpu", (SIZE,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tensor_parallel(model):
    mesh = init_device_mesh("cpu", (SIZE,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def both(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])


def hybrid(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(state):
    """As arrays: tensors sent to another process go with this one."""
    with torch.no_grad():
        full = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
    return {name: value.detach().numpy().copy() for name, value in full.items()}


def train(rank, url, spread):
    torch.manual_seed(0)
    model = Transformer()
    spread(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    states = {}
    with deltavc.open(url, db="sqlite://") as repo, repo.writer("main", group=dist.group.WORLD, timeout=30.0) as writer:
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            words = torch.randint(23, (4, 8), generator=generator)
            nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.steps += 1
            states[writer.commit(model, step=step).id] = whole(model.state_dict())
    return states


@pytest.mark.parametrize(
    "spread", [fsdp, both, *(pytest.param(spread, marks=pytest.mark.long) for spread in (tensor_parallel, hybrid))]
)
def test_a_model_that_torch_spreads_is_committed_as_it_would_be_whole(repo, spread):
    first, *others = in_ranks(SIZE, train, repo.url, spread)
    assert len(first) == 3
    for version, arrays in first.items():
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        assert same(repo.checkout(version), state)
        tied = state | {"head.weight": state["embed.weight"]}
        assert version in [found.id for found in repo.identify(tied)]
    assert all(other.keys() == first.keys() for other in others)


def odd(rank, url):
    mesh = init_device_mesh("cpu", (2, 2))
    rows = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)
    state = {
        "twice": distribute_tensor(rows, mesh, [Shard(0), Shard(0)]),  # 2, 2, 2, 1 of 7
        "block": distribute_tensor(rows, mesh, [Shard(1), Shard(0)]),
        "copy": distribute_tensor(rows, mesh, [Replicate(), Shard(1)]),
        "few": distribute_tensor(rows[:1].clone(), mesh, [Shard(0), Replicate()]),  # nothing on two ranks
        "some": distribute_tensor(rows, init_device_mesh("cpu", (4,)), [Shard(0)]),
        "number": distribute_tensor(torch.tensor(3.5), mesh, [Replicate(), Replicate()]),
    }
    with deltavc.open(url, db="sqlite://") as repo:
        repo.commit(state, group=dist.group.WORLD, timeout=30.0)
        state["sum"] = DTensor.from_local(rows, mesh, [Replicate(), Partial()])
        error = ends_of(lambda: repo.commit(state, group=dist.group.WORLD, timeout=30.0))
    return error


def test_parts_of_meshes_may_be_uneven_empty_and_copied_but_not_partial(repo):
    for error in in_ranks(SIZE, odd, repo.url):
        assert isinstance(error, BadState)
        assert "'sum' is a DTensor with a Partial placement" in str(error)
    rows = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)
    state = dict.fromkeys(["twice", "block", "copy", "some"], rows) | {"few": rows[:1], "number": torch.tensor(3.5)}
    assert same(repo.checkout("main"), state)
