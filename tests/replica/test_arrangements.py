"""Replicas of live tensors as engines have them: fused, sliced, permuted, tied, in part; never put elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltavc
from deltavc.bindings import concatenated, sharded
from deltavc.errors import LayoutMismatch
from deltavc.kernels import pool
from deltavc.replica.pending import MIN_RUN
from tests.replica.samples import line_of
from tests.states import changed, copied, random_bits, raw, same, stepped


def checkpoint(seed=0):
    """What a trainer commits: projections apart, an embedding that the head is tied to."""
    random = torch.Generator().manual_seed(seed)

    def weights(*shape):
        return torch.randn(shape, generator=random).bfloat16()

    embed = weights(48, 16)
    return {
        "embed": embed,
        "head": embed,
        "norm": weights(16).float(),
        "q": weights(16, 16),
        "k": weights(4, 16),
        "v": weights(4, 16),
        "gate": weights(32, 16),
        "up": weights(32, 16),
        "down": weights(16, 32),
        "experts": weights(4, 16, 8),
    }


class Engine(torch.nn.Module):
    """The same weights as an engine arranges them; `down` and `experts` lie transposed, `gate` and `up` interleaved."""

    def __init__(self):
        super().__init__()
        bf16 = torch.bfloat16
        self.embed = torch.nn.Embedding(48, 16, dtype=bf16)
        self.head = torch.nn.Linear(16, 48, bias=False, dtype=bf16)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.Parameter(torch.zeros(16))
        self.qkv = torch.nn.Parameter(torch.zeros(24, 16, dtype=bf16))
        self.gate_up = torch.nn.Parameter(torch.zeros(32, 2, 16, dtype=bf16))
        self.down_t = torch.nn.Parameter(torch.zeros(32, 16, dtype=bf16))
        self.experts_t = torch.nn.Parameter(torch.zeros(8, 4, 16, dtype=bf16))

    def bindings(self):
        return {
            "embed": self.embed.weight,
            "head": self.head.weight,
            **concatenated(self.qkv, {"q": 16, "k": 4, "v": 4}),
            "gate": self.gate_up[:, 0],
            "up": self.gate_up[:, 1],
            "down": self.down_t.t(),
            "experts": self.experts_t.permute(1, 2, 0),
        }

    def load(self, state):
        for name, view in (self.bindings() | {"norm": self.norm}).items():
            view.detach().copy_(state[name])


def as_bound(views, state):
    return all(torch.equal(raw(views[name]), raw(state[name])) for name in state)


@pytest.mark.parametrize("density", [0.01, 0.9])
def test_an_engine_with_fused_and_permuted_parameters_moves_in_place(tmp_path, density):
    with line_of(tmp_path / "repo", 6, checkpoint(), density) as (repo, versions):
        engine = Engine()
        engine.load(versions[repo.resolve("main")])
        places = [parameter.data_ptr() for parameter in engine.parameters()]
        views = engine.bindings() | {"norm": engine.norm}
        with repo.replica(engine, at="main", bindings=engine.bindings()) as replica:
            for number in (3, 1, 5, 0, 2, 4):
                replica.move(f"main~{number}")
                assert as_bound(views, versions[replica.version])
            replica.verify()
        assert places == [parameter.data_ptr() for parameter in engine.parameters()]


@pytest.mark.parametrize("run", [MIN_RUN - 1, MIN_RUN])
def test_runs_in_a_fused_weight_are_written_whole_or_lane_by_lane(tmp_path, run):
    state = {name: random_bits("bfloat16", (6, run), seed) for seed, name in enumerate(("gate", "up"))}
    with line_of(tmp_path / "repo", 2, state, 0.9) as (repo, versions):
        fused = torch.stack([versions[repo.resolve("main")][name] for name in state], 1)
        views = {"gate": fused[:, 0], "up": fused[:, 1]}
        with repo.replica({"fused": fused}, at="main", bindings=views) as replica:
            for ref in ("main~1", "main"):
                replica.move(ref)
                assert as_bound(views, versions[replica.version])
            replica.verify()


def test_tied_weights_are_written_once_and_untied_ones_apart(tmp_path):
    with line_of(tmp_path / "repo", 3, checkpoint()) as (repo, versions):
        apart = {name: tensor.clone() for name, tensor in versions[repo.resolve("main")].items()}
        tied = copied(versions[repo.resolve("main")])
        with repo.replica(apart) as one, repo.replica(tied) as other:
            one.move("main~2")
            other.move("main~2")
            assert same(apart, versions[one.version])
            assert same(tied, versions[one.version])
            apart["head"].view(torch.int16)[0, 0] ^= 1
            with pytest.raises(deltavc.DeltavcError, match="head"):
                one.verify()


@settings(max_examples=15)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from([(0, "q"), (1, "down"), (2, "experts"), (0, "embed")]), unique_by=lambda s: s[1]),
    st.sampled_from([0.003, 0.05, 0.6]),
)
def test_all_shards_of_tensors_together_are_a_version_and_each_holds_its_part(line_factory, world, cuts, density):
    repo, versions = line_factory(density)
    last = versions[repo.resolve("main")]
    live, bindings = {}, {}
    for dim, name in cuts:
        names = ("embed", "head") if name == "embed" else (name,)
        parts = [chunk.clone() for chunk in last[name].chunk(world, dim)]
        live |= {f"{name}.{rank}": part for rank, part in enumerate(parts)}
        for each in names:
            bindings[each] = [sharded(part, last[name].shape, dim, rank, world) for rank, part in enumerate(parts)]
    live |= {name: tensor.clone() for name, tensor in last.items() if name not in bindings}
    with repo.replica(live, at="main", bindings=bindings) as replica:
        for ref in ("main~2", "main", "main~1"):
            replica.move(ref)
            state = versions[replica.version]
            for dim, name in cuts:
                whole = torch.cat([live[f"{name}.{rank}"] for rank in range(len(last[name].chunk(world, dim)))], dim)
                assert torch.equal(raw(whole), raw(state[name]))
            assert all(torch.equal(raw(live[name]), raw(state[name])) for name in state if name in live)


@pytest.fixture(scope="module")
def line_factory(tmp_path_factory):
    made = {}

    def make(density):
        if density not in made:
            context = line_of(tmp_path_factory.mktemp("line") / "repo", 3, checkpoint(), density)
            made[density] = context, context.__enter__()
        return made[density][1]

    yield make
    for context, _ in made.values():
        context.__exit__(None, None, None)


def test_a_part_alone_proves_nothing_and_is_refused(tmp_path):
    with line_of(tmp_path / "repo", 2, checkpoint()) as (repo, versions):
        state = copied(versions[repo.resolve("main")])
        half = state["down"][:, :16].clone()
        live = {name: tensor for name, tensor in state.items() if name != "down"} | {"down.0": half}
        bindings = {"down": sharded(half, (16, 32), 1, 0, 2)}
        with pytest.raises(LayoutMismatch, match="in part"):
            repo.replica(live, at="main", bindings=bindings)


def test_ignored_tensors_are_left_out_and_the_rest_is_still_proven(tmp_path):
    with line_of(tmp_path / "repo", 3, checkpoint()) as (repo, versions):
        live = {name: tensor.clone() for name, tensor in versions[repo.resolve("main")].items() if name != "experts"}
        live["cache"] = torch.zeros(9)
        with repo.replica(live, at="main", ignore=["experts", "cache"]) as replica:
            for ref in ("main~2", "main"):
                replica.move(ref)
                assert same({n: live[n] for n in live if n != "cache"}, without(versions[replica.version], "experts"))
        live["q"].view(torch.int16)[0, 0] ^= 1
        with pytest.raises(deltavc.DeltavcError, match="'q'"):
            repo.replica(live, at="main", ignore=["experts", "cache"])


def without(state, name):
    return {each: tensor for each, tensor in state.items() if each != name}


def test_tensors_that_start_anew_on_the_way_are_written_whole(tmp_path):
    """A path through versions that have a tensor in another form."""
    first = checkpoint()
    with deltavc.init(tmp_path / "repo") as repo:
        repo.commit(first)
        other = copied(first) | {"norm": first["norm"].double()}
        repo.commit(other)
        last = stepped(first, 5)
        repo.commit(last, snapshot=False)
        live = {name: tensor.clone() for name, tensor in first.items()}
        with repo.replica(live, at="main~2") as replica:
            replica.move("main")
            assert same(live, last)
            with pytest.raises(LayoutMismatch, match="norm"):
                replica.stage("main~1").wait()
            replica.move("main~2")
            assert same(live, first)


def test_tied_tensors_that_start_anew_and_lie_apart_are_each_changed_once(tmp_path):
    first, retyped = random_bits("bfloat16", (40, 30)), random_bits("float32", (40, 30))
    last = changed(first, 1, 0.01)
    with deltavc.init(tmp_path / "repo") as repo:
        for tensor in (first, retyped, first, last):
            repo.commit({"embed": tensor, "head": tensor}, snapshot=False)
        live = {"embed": first.clone(), "head": first.clone()}
        with repo.replica(live, at="main~3") as replica:
            replica.move("main")
            assert same(live, {"embed": last, "head": last})


def test_with_one_thread_nothing_of_staging_runs_on_several(tmp_path, monkeypatch):
    """Not even the changes of tensors that start anew on the way."""
    state = {"w": random_bits("float32", (900_000,))}
    other = {"w": random_bits("float64", (900_000,))}
    run, spread = pool.run, []

    def spy(tasks):
        if len(tasks) > 1 and not pool.inside():
            spread.append(len(tasks))
        return run(tasks)

    with deltavc.init(tmp_path / "repo") as repo:
        for step in (copied(state), other, state, stepped(state, 1, 0.3)):
            repo.commit(step, snapshot=False, codec="sparse")
        with repo.replica(copied(state), at="main~3", threads=1, staging_bytes=1 << 24) as replica:
            monkeypatch.setattr(pool, "run", spy)
            for ref in ("main", "main~1"):
                replica.stage(ref).wait()
            monkeypatch.undo()
            replica.apply()
            replica.verify()
    assert not spread
