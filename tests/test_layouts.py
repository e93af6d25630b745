"""Layouts change between versions, tensors are tied, many or large, and every version still comes back exactly."""

import pytest
import torch

import deltavc
from deltavc import SnapshotPolicy
from deltavc.errors import BadState
from deltavc.lineage.index import Index
from deltavc.repo import Repo
from deltavc.store.memory import MemoryStore
from tests import states


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


def tied():
    weight = torch.randn(40, 8)
    return {"head": weight, "embed": weight, "bias": torch.randn(8)}


def test_tied_tensors_are_stored_once_and_come_back_tied(repo):
    state = tied()
    version = repo.commit(state)
    assert version.num_lanes == 40 * 8 + 8
    found = repo.checkout()
    assert states.same(found, state)
    assert found["head"] is found["embed"]
    assert [tensor["tie"] for tensor in repo.tensors()] == [None, None, "embed"]
    head = repo.checkout(tensors=["head"])
    assert list(head) == ["head"]
    assert states.same_tensor(head["head"], state["head"])


def test_views_of_one_storage_are_tied_only_when_they_are_one_tensor(repo):
    weight = torch.randn(6, 6)
    state = {
        "whole": weight,
        "same": weight.view(6, 6),
        "transposed": weight.t(),
        "flat": weight.view(36),
        "rows": weight[:3],
        "bits": weight.view(torch.int32),
    }
    repo.commit(state)
    assert states.same(repo.checkout(), state)
    assert {tensor["name"]: tensor["tie"] for tensor in repo.tensors() if tensor["tie"]} == {"whole": "same"}


def test_ties_come_and_go(repo):
    one, other = torch.randn(5, 5), torch.randn(5, 5)
    steps = [
        {"a": one, "b": one, "c": one},
        {"a": one, "b": one.clone(), "c": one},
        {"a": other, "b": one, "c": one},
        {"b": one, "c": one},
        {"0": one, "b": one, "c": other},
        {"0": other, "b": other, "c": other},
    ]
    with repo.writer() as writer:
        versions = [writer.commit(state) for state in steps]
        for version, state in [*zip(versions, steps, strict=True)][::-1]:
            found = repo.checkout(version.id)
            assert states.same(found, state)
            for one_name in state:
                for other_name in state:
                    assert (found[one_name] is found[other_name]) == (state[one_name] is state[other_name])
            live = {name: torch.zeros(5, 5) for name in state}
            writer.move(version.id, into=live)
            assert states.same(live, state)


def test_a_partial_commit_moves_ties_with_the_tensor_they_name(repo):
    state = tied()
    repo.commit(state)
    new = torch.randn(40, 8)
    repo.commit({"embed": new}, partial=True)
    assert states.same(repo.checkout(), {**state, "embed": new, "head": new})
    newer = torch.randn(40, 8)
    repo.commit({"embed": newer, "aaa": newer}, partial=True)  # what holds the values has another name now
    assert states.same(repo.checkout(), {**state, "embed": newer, "head": newer, "aaa": newer})
    apart = torch.randn(40, 8)
    repo.commit({"head": apart}, partial=True)
    assert states.same(repo.checkout(), {**state, "embed": newer, "head": apart, "aaa": newer})
    with pytest.raises(BadState, match="tied"):
        repo.commit({"aaa": torch.randn(3)}, partial=True)


def test_a_reversible_edge_is_walked_back_and_others_are_walked_around(repo):
    a, b, c = torch.randn(50), torch.randn(60), torch.randn(70)
    steps = [
        {"a": a, "b": b},
        {"a": a + 1, "b": b, "c": c},  # new: reversible
        {"a": a + 1, "c": c},  # dropped: not
        {"a": (a + 1).bfloat16(), "c": c},  # retyped: not
        {"a": (a + 1).bfloat16(), "c": c.view(7, 10)},  # reshaped: not
        {"a": (a + 1).bfloat16(), "c": c.view(7, 10) + 1},
    ]
    with repo.writer() as writer:
        versions = [writer.commit(state).id for state in steps]
        for at in (4, 5, 3, 0, 1, 0, 2, 5, 1, 4):
            live = states.stepped(states.copied(steps[at]), at, 1.0)
            writer.move(versions[at], into=live)
            assert states.same(live, steps[at])
            assert writer.version == versions[at]


def test_a_snapshot_uses_the_frames_of_what_has_not_changed(repo):
    state = {"frozen": torch.randn(100_000), "trained": torch.randn(1000)}
    with repo.writer() as writer:
        first = writer.commit(state, snapshot=True)
        state = {**state, "trained": torch.randn(1000)}
        writer.commit(state)
        state = {**state, "trained": torch.randn(1000)}
        second = writer.commit(state, snapshot=True)
        again = writer.commit(state, snapshot=True)
    assert second.stored_bytes < 16_000 < first.stored_bytes
    assert again.stored_bytes == 0
    assert repo.stats().num_snapshots == 3
    for version in (second, again):
        assert states.same(repo.checkout(version.id), state)
        with deltavc.open(repo.url, db="sqlite://") as fresh:
            assert states.same(fresh.checkout(version.id), state)


def test_a_policy_writes_snapshots_that_change_nothing_but_the_way(repo):
    steps = [{"x": torch.randn(500).bfloat16(), "y": torch.ones(400)}]
    for seed in range(9):
        steps.append({**steps[-1], "x": states.changed(steps[-1]["x"], seed, 0.2)})
    with repo.writer("main", snapshots=SnapshotPolicy(max_edges=3, max_ratio=1e9)) as writer:
        versions = [writer.commit(state).id for state in steps]
    assert repo.stats().num_snapshots == 3
    repo.branch("other", versions[0])
    with repo.writer("other", snapshots=SnapshotPolicy(max_edges=10**9, max_ratio=1e9)) as writer:
        chained = [versions[0], *(writer.commit(state).id for state in steps[1:])]
    assert repo.stats().num_snapshots == 3
    with repo.writer("other", snapshots=SnapshotPolicy(max_ratio=0.1)) as writer:
        writer.commit(steps[-1])
    assert repo.stats().num_snapshots == 4
    for one, other, state in zip(versions, chained, steps, strict=True):
        assert states.same(repo.checkout(one), state)
        assert states.same(repo.checkout(other), state)


class CountingStore(MemoryStore):
    """Counts what is written; a real store otherwise."""

    def __init__(self):
        super().__init__("memory://counted")
        self.puts = []

    def put(self, key, body):
        self.puts.append(key)
        super().put(key, body)

    def create(self, key, body):
        self.puts.append(key)
        return super().create(key, body)


@pytest.mark.long
def test_twenty_thousand_tiny_tensors_take_few_writes():
    from deltavc.lineage import schema
    from deltavc.lineage.database import open_database

    store, engine = CountingStore(), open_database("sqlite://")
    schema.prepare(engine)
    state = {f"layers.{number}.scale": torch.tensor([number % 7, 1.0, 2.0]) for number in range(20_000)}
    with Repo(store, Index(engine, store, "0" * 32), "0" * 32) as repo, repo.writer() as writer:
        for _ in range(2):
            state = {name: tensor + (number % 50 == 0) for number, (name, tensor) in enumerate(state.items())}
            store.puts.clear()
            writer.commit(state, snapshot=True)
            assert len(store.puts) <= 19  # and a hint at the last entry, which may be on its way still
        assert states.same(repo.checkout(), state)


@pytest.mark.long
def test_a_tensor_beyond_four_gib_comes_back(tmp_path):
    size = (4 << 30) + 12_345
    tensor = torch.zeros(size, dtype=torch.uint8)
    places = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, size - 1])
    with deltavc.init(tmp_path / "repo") as repo, repo.writer(keep="disk") as writer:
        writer.commit({"x": tensor})
        for step in (1, 2):
            tensor[places] += step
            version = writer.commit({"x": tensor})
            assert version.changed_lanes == len(places)
        found = repo.checkout(version.id)["x"]
        assert torch.equal(found, tensor)
        del found
        writer.rollback("main~1", into={"x": tensor})
    assert tensor[places].tolist() == [1] * len(places)
    assert int(tensor.count_nonzero()) == len(places)
