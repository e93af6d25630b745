"""What is done on devices, where a launch takes many tensors, done to tensors of the CPU: walks and commits come to
the same as one tensor after another."""

import uuid

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deltavc
from deltavc import kernels, packing, walk
from deltavc.errors import EncodeMismatch
from tests import states


@pytest.fixture(autouse=True)
def together(monkeypatch):
    monkeypatch.setattr(kernels, "together", lambda device: True)
    monkeypatch.setattr(packing, "FRAME_BYTES", 512)


@pytest.mark.parametrize("nbytes", [1, 2000, walk.TOGETHER_BYTES])
def test_walks_come_there_and_back(monkeypatch, nbytes):
    monkeypatch.setattr(walk, "TOGETHER_BYTES", nbytes)
    repo = deltavc.init(f"memory://{uuid.uuid4().hex}")
    first = states.of_every_dtype()
    with repo.writer() as writer:
        versions = [writer.commit(first)]
        made = [first]
        for seed in range(1, 4):
            made.append(states.stepped(made[-1], seed))
            versions.append(writer.commit(made[-1]))
        made.append(
            {name: tensor for name, tensor in made[-1].items() if "int8" not in name} | {"new": torch.ones(700)}
        )
        versions.append(writer.commit(made[-1]))
        for number in (3, 0, 2, 1, 4):
            assert states.same(repo.checkout(versions[number].id), made[number])
            writer.move(versions[number].id)
        writer.commit(made[0])
    assert states.same(repo.checkout(), made[0])


@given(sizes=st.lists(st.integers(0, 30)), most=st.integers(1, 40))
def test_batches_are_everything_in_order_and_no_larger_than_they_have_to_be(sizes, most):
    batches = list(kernels.batches(sizes, int, most))
    assert [size for batch in batches for size in batch] == sizes
    for batch, after in zip(batches, [*batches, None][1:], strict=True):
        assert batch
        assert sum(batch) <= most or len(batch) == 1
        assert after is None or sum(batch) + after[0] > most


def test_packs_are_those_of_one_tensor_after_another(monkeypatch):
    state = states.of_every_dtype()
    last = states.stepped(state, 1)
    packed = []
    for together in (True, False):
        monkeypatch.setattr(kernels, "together", lambda device, together=together: together)
        repo = deltavc.init(f"memory://{uuid.uuid4().hex}")
        with repo.writer() as writer:
            made = [writer.commit(one) for one in (state, last)]
        packed.append([(one.fingerprint, one.changed_lanes) for one in made])
    assert packed[0] == packed[1]


def test_a_commit_that_fails_is_taken_back_from_all_tensors(monkeypatch):
    repo = deltavc.init(f"memory://{uuid.uuid4().hex}")
    state = states.of_every_dtype()
    with repo.writer() as writer:
        writer.commit(state)
        with monkeypatch.context() as patch:
            patch.setattr(packing, "same", lambda one, other: False)
            with pytest.raises(EncodeMismatch):
                writer.commit(states.stepped(state, 1))
        assert writer.commit(states.stepped(state, 2)).changed_lanes
    assert states.same(repo.checkout(), states.stepped(state, 2))
