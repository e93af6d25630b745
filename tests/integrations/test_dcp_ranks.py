"""torch.distributed.checkpoint on many ranks: real processes, FSDP2, and runs that go on as if never interrupted."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import deltavc
from deltavc.integrations.dcp import DeltaReader, DeltaWriter
from tests.replica.ranks import in_ranks
from tests.sharded.test_dtensors import Transformer, both, hybrid, tensor_parallel
from tests.states import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

TIMEOUT = 30.0


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


class Net(nn.Module):
    """Small, with uneven lengths, tied embeddings, and parameters with fewer rows than there are ranks."""

    def __init__(self, width=10, words=23):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.up = nn.Linear(width, 7)
        self.down = nn.Linear(7, width)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        return self.head(x + self.scale * self.down(torch.relu(self.up(x))))


def by_rows(model):
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


class Trainer:
    """A script as there are many: FSDP2 where there are ranks, AdamW, a schedule, and all of it in one state."""

    def __init__(self, make=Net, spread=by_rows):
        torch.manual_seed(0)
        self.model = make()
        if dist.is_initialized():
            spread(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.7)
        self.step = 0

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "schedule": self.schedule.state_dict(), "step": self.step}

    def load(self, reader, **options):
        state = self.state()
        dcp.load(state, storage_reader=reader, **options)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]

    def train(self):
        """One step; the batch is the same on all ranks, so that how many there are changes no bit."""
        words = torch.randint(23, (4, 8), generator=torch.Generator().manual_seed(self.step))
        nn.functional.cross_entropy(self.model(words).flatten(0, 1), words.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1

    def whole(self):
        """All tensors, of the optimizer too, as arrays by dotted name: tensors do not leave their process alive."""
        found = {}

        def note(name, value):
            if isinstance(value, dict):
                for key, inner in value.items():
                    note(f"{name}.{key}" if name else key, inner)
            elif isinstance(value, torch.Tensor):
                full = value.full_tensor() if isinstance(value, DTensor) else value
                found[name] = full.detach().numpy().copy()

        state = self.state()
        note("", {"model": state["model"], "optim": {"state": state["optim"]["state"]}})
        return found


def tensors(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def opened(url, **place):
    return deltavc.open(url, **({"db": "sqlite://"} | place))


def run(rank, url, until, start=None, save=True, **place):
    """Train until a step, from the start or from a version, saving each."""
    with opened(url, **place) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        trainer = Trainer()
        if start is not None:
            trainer.load(DeltaReader(repo), checkpoint_id=start)
        while trainer.step < until:
            trainer.train()
            if save:
                dcp.save(trainer.state(), storage_writer=writer, checkpoint_id=f"step-{trainer.step}")
        return trainer.whole(), writer.saved and writer.saved.id


def never_interrupted(until):
    """What a run on one process comes to, without any repository."""
    trainer = Trainer()
    while trainer.step < until:
        trainer.train()
    return tensors(trainer.whole())


def run_twice(rank, url):
    return run(rank, url, 3), run(rank, url, 5, "step-3")


def test_a_run_goes_on_as_if_never_interrupted(repo):
    ((first, saved), (again, last)), other = in_ranks(2, run_twice, repo.url)
    assert [found for _, found in other] == [saved, last]
    expected = never_interrupted(3)
    assert same(tensors(first), expected)
    version = repo.checkout("step:3")
    assert same({name: version[name] for name in expected}, expected)
    assert same(tensors(again), never_interrupted(5))
    assert [each.step for each in repo.log("main")] == [5, 4, 3, 2, 1]
    assert repo.resolve("main") == last
    assert not repo.fsck().problems
    alone, _ = run(0, repo.url, 5, "step-2", save=False)  # not distributed
    assert same(tensors(alone), never_interrupted(5))


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 1), (1, 3)])
def test_a_run_goes_on_with_other_ranks(repo, before, after):
    in_ranks(before, run, repo.url, 3)
    if before & (before - 1) == 0 and after & (after - 1) == 0:  # otherwise means of gradients are rounded
        (found, _), *_ = in_ranks(after, run, repo.url, 5, "step-3")
        assert same(tensors(found), never_interrupted(5))
    saved = repo.checkout("step:3")
    for arrays, _ in in_ranks(after, run, repo.url, 3, "step-3", False):
        assert same(tensors(arrays), {name: saved[name] for name in arrays})


def on_servers(rank, url, options, database):
    """Rank 0 has the database, the other none."""
    place = {"db": "none" if rank else database, "storage_options": options}
    run(rank, url, 2, **place)
    return run(rank, url, 4, "main", **place)


@pytest.mark.long
@pytest.mark.servers
def test_a_run_on_s3_and_postgresql_goes_on_as_if_never_interrupted(s3, postgres):
    place = {"db": postgres.new_database(), "storage_options": s3.storage_options}
    with deltavc.init(s3.new_bucket(), **place) as repo:
        for arrays, _ in in_ranks(2, on_servers, repo.url, s3.storage_options, place["db"]):
            assert same(tensors(arrays), never_interrupted(4))
        assert [version.step for version in repo.log("main")] == [4, 3, 2, 1]
        assert not repo.fsck().problems


def in_background(rank, url):
    """Collectives of the training step, and of dcp, go on while a save is on its way."""
    with opened(url) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        trainer, pending, whole = Trainer(), None, []
        background = dist.new_group(backend="gloo")
        for _ in range(4):
            trainer.train()
            if pending is not None:
                pending.result()
            pending = dcp.async_save(
                trainer.state(), storage_writer=writer.telling(step=trainer.step), process_group=background
            )
            whole.append(trainer.whole())  # collectives on the default group
        pending.result()
        return whole


@pytest.mark.long
def test_saves_in_the_background_hold_what_was_there_when_they_began(repo):
    whole, _ = in_ranks(2, in_background, repo.url)
    for step, arrays in enumerate(whole, 1):
        version = repo.checkout(f"step:{step}")
        assert same({name: version[name] for name in arrays}, tensors(arrays))


def beside_collectives(rank, url):
    """The same group for training and for saves in the background, where dcp allows it: between collectives."""
    with opened(url) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        trainer = Trainer()
        for _ in range(3):
            trainer.train()
            dcp.async_save(trainer.state(), storage_writer=writer.telling(step=trainer.step)).result()
        return writer.saved.step


@pytest.mark.long
def test_saves_in_the_background_may_use_the_default_group(repo):
    assert in_ranks(2, beside_collectives, repo.url) == [3, 3]


class Failing:
    """A value that cannot be pickled, on one rank."""

    def __reduce__(self):
        raise RuntimeError("out of ink")


def with_a_failure(rank, url, way):
    """Save, fail on rank 1, and save again."""
    with opened(url) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        trainer = Trainer()
        trainer.train()
        dcp.save(trainer.state(), storage_writer=writer.telling(step=1))
        trainer.train()
        state = trainer.state() | {f"own.{rank}": 0}
        if way == "value" and rank == 1:
            state["own.1"] = Failing()
        if way == "quantised" and rank == 1:
            state["own.1"] = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
        step = 10 + rank if way == "steps" else 2
        try:
            dcp.save(state, storage_writer=writer.telling(step=step))
        except CheckpointException as error:
            failures = {each: (type(found).__name__, str(found)) for each, (found, _) in error.failures.items()}
        trainer.train()
        dcp.save(trainer.state(), storage_writer=writer.telling(step=3))
        return failures, trainer.whole()


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "kinds", "words"),
    [
        ("value", {0: "PeerFailed", 1: "RuntimeError"}, "out of ink"),
        ("quantised", {0: "PeerFailed", 1: "BadState"}, "own.1"),
        ("steps", {0: "BadMetadata", 1: "BadMetadata"}, "step 11"),
    ],
)
def test_a_rank_that_fails_is_named_on_all_and_the_next_save_is_made(repo, way, kinds, words):
    for failures, whole in in_ranks(2, with_a_failure, repo.url, way):
        assert {rank: kind for rank, (kind, _) in failures.items()} == kinds
        assert all(words in text for _, text in failures.values())
        assert [version.step for version in repo.log("main")] == [3, 1]
        version = repo.checkout("main")
        assert same({name: version[name] for name in whole}, tensors(whole))


def dying(rank, url):
    """The last rank dies in the middle of a save; the others hear of it in the time that they wait."""
    with opened(url) as repo:
        trainer = Trainer()
        trainer.train()
        writer = DeltaWriter(repo, timeout=3.0)
        dcp.save(trainer.state(), storage_writer=writer.telling(step=1))
        state = trainer.state()
        if rank == dist.get_world_size() - 1:
            writer.write_data = lambda plan, planner: os._exit(9)
        try:
            dcp.save(state, storage_writer=writer.telling(step=2))
        except BaseException as error:  # of the collectives that dcp makes next, too
            return type(error).__name__
    return None


@pytest.mark.long
def test_a_rank_that_dies_in_a_save_leaves_the_version_before(repo):
    *outcomes, died = in_ranks(3, dying, repo.url)
    assert None not in outcomes
    assert died == "died"
    assert [version.step for version in repo.log("main")] == [1]
    assert not repo.fsck(full=True).problems


def planned_once(rank, url):
    """Plans that dcp keeps over saves, and then another state."""
    with opened(url) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        trainer, whole = Trainer(), []
        for more in ({}, {}, {"more": 1}, {"more": 2}):
            trainer.train()
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            dcp.save(trainer.state() | more, storage_writer=writer.telling(step=trainer.step), planner=planner)
            whole.append(trainer.whole())
        found = {"more": None, "step": None}
        dcp.load(found, storage_reader=DeltaReader(repo))
        return whole, found


@pytest.mark.long
def test_plans_may_be_kept_over_saves(repo):
    (whole, found), _ = in_ranks(2, planned_once, repo.url)
    assert found == {"more": 2, "step": 4}
    for step, arrays in enumerate(whole, 1):
        version = repo.checkout(f"step:{step}")
        assert same({name: version[name] for name in arrays}, tensors(arrays))


def spread(rank, url, way):
    """A model that torch spreads in some way, saved after two steps, and loaded by one that is new."""
    with opened(url) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        trainer = Trainer(Transformer, way)
        for _ in range(2):
            trainer.train()
            dcp.save(trainer.state(), storage_writer=writer.telling(step=trainer.step))
        again = Trainer(Transformer, way)
        again.load(DeltaReader(repo))
        return trainer.whole(), again.whole()


@pytest.mark.long
@pytest.mark.parametrize("way", [tensor_parallel, both, hybrid])
def test_models_that_torch_spreads_in_other_ways_are_saved_and_loaded(repo, way):
    outcomes = in_ranks(4, spread, repo.url, way)
    version = repo.checkout("main")
    for saved, loaded in outcomes:
        assert same(tensors(saved), tensors(loaded))
        assert same({name: version[name] for name in saved}, tensors(saved))


def sized(rank, url, num_rows):
    """Save twice, with a few rows of a large tensor changed between."""
    with opened(url) as repo, DeltaWriter(repo, timeout=TIMEOUT) as writer:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(0)
        model = nn.Linear(256, num_rows, bias=False)
        fully_shard(model, mesh=mesh)
        sizes = []
        for step in range(2):
            dcp.save({"model": model.state_dict()}, storage_writer=writer.telling(step=step))
            sizes.append(writer.saved.stored_bytes)
            with torch.no_grad():
                model.weight.to_local()[:2] += 1
        return sizes


@pytest.mark.long
def test_a_second_save_of_a_large_model_is_small(repo):
    first, second = in_ranks(2, sized, repo.url, 20_000)[0]
    assert first > 10_000_000
    assert second < first / 1000


def loading_damaged(rank, url):
    with opened(url) as repo:
        trainer = Trainer()
        try:
            trainer.load(DeltaReader(repo))
        except CheckpointException as error:
            return {each: type(found).__name__ for each, (found, _) in error.failures.items()}
    return None


@pytest.mark.long
def test_damage_is_an_error_on_all_ranks(repo, tmp_path):
    in_ranks(2, run, repo.url, 1)
    for pack in (tmp_path / "repo" / "packs").rglob("*.pack"):
        body = bytearray(pack.read_bytes())
        for at in range(64, len(body), 16):
            body[at] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(body)
    for failures in in_ranks(2, loading_damaged, repo.url):
        assert failures == {0: "CorruptObject", 1: "CorruptObject"}


def racing(rank, url, versions, lengths):
    """Load a branch that moves between the look of rank 0 and that of the others. lengths: of "a", on each rank."""
    state = {"lr": None} | ({"a": torch.zeros(lengths[rank])} if lengths[rank] else {})
    with opened(url) as repo:
        dcp.load(state, storage_reader=DeltaReader(repo, versions[rank]))
        return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


@pytest.mark.long
def test_all_ranks_load_what_rank_0_found(repo):
    with DeltaWriter(repo) as writer:
        for step, length in enumerate((6, 6, 7)):
            state = {"a": torch.full((length,), float(step)), "lr": step}
            dcp.save(state, storage_writer=writer.telling(step=step))
    found = in_ranks(2, racing, repo.url, ["step:1", "step:0"], [6, 6])
    assert found == [{"a": [1.0] * 6, "lr": 1}] * 2
    with pytest.raises(AssertionError, match="which rank 0 loads"):
        in_ranks(2, racing, repo.url, ["step:1", "step:2"], [0, 7])


def within(rank, url, given):
    """Two of three ranks save, over a group of their own."""
    group = dist.new_group([0, 1])
    if rank == 2:
        return None
    with opened(url) as repo, DeltaWriter(repo, group=group if given else None, timeout=3.0) as writer:
        rows = torch.arange(8.0).reshape(4, 2).chunk(2)[rank]
        state = {"both": torch.ones(3), f"own.{rank}": rows}
        try:
            dcp.save(state, storage_writer=writer, process_group=group)
        except CheckpointException as error:
            return [str(found) for found, _ in error.failures.values()]
        return writer.saved.id


@pytest.mark.long
def test_a_writer_of_another_group_than_that_of_the_save_is_refused(repo):
    first, second, _ = in_ranks(3, within, repo.url, True)
    assert first == second == repo.resolve("main")
    for found in in_ranks(3, within, repo.url, False)[:2]:
        assert "the writer as group=" in found[0]
