"""Which versions hold exactly these weights, and what differs between two of them."""

import math
import struct

import pytest
import torch
from safetensors.torch import save_file

import deltavc
from deltavc.diff import largest_step
from deltavc.errors import BadCheckpoint, BadState, UnknownRef
from deltavc.lanes import lanes
from tests import states


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


def ids(versions):
    return [version.id for version in versions]


def test_weights_are_found_in_any_form_and_others_are_not(repo, tmp_path):
    state = {"a": torch.randn(20), "b": states.random_bits("bfloat16", (3, 4)), "e": torch.ones(0)}
    first = repo.commit(state)
    repo.commit({**state, "a": state["a"] + 1})
    back = repo.commit(state)
    save_file(state, tmp_path / "x.safetensors")
    (tmp_path / "folder").mkdir()
    save_file(state, tmp_path / "folder" / "model.safetensors")
    strided = {**state, "b": state["b"].t().contiguous().t()}
    for form in (state, state.items(), strided, tmp_path / "x.safetensors", str(tmp_path / "folder")):
        assert ids(repo.identify(form)) == [back.id, first.id]
    for other in (
        {**state, "a": state["a"].flip(0)},
        {name: state[name] for name in "ab"},
        {**state, "more": torch.ones(1)},
        {"a": state["b"], "b": state["a"], "e": state["e"]},
        {**state, "a": state["a"].view(torch.int32)},
        {**state, "b": state["b"].reshape(4, 3)},
        {**state, "e": torch.ones(0, 2)},
    ):
        assert repo.identify(other) == []
    with pytest.raises(BadCheckpoint):
        repo.identify(tmp_path / "nothing.safetensors")
    with pytest.raises(BadState):
        repo.identify({})


def test_files_that_dropped_ties_are_found(repo, tmp_path):
    weight = torch.randn(6, 2)
    tied = repo.commit({"embed": weight, "head": weight, "b": torch.ones(2)})
    apart = {"embed": weight, "head": weight.clone(), "b": torch.ones(2)}
    untied = repo.commit(apart)
    save_file(apart, tmp_path / "both.safetensors")
    save_file({"embed": weight, "b": torch.ones(2)}, tmp_path / "first.safetensors")
    save_file({"head": weight, "b": torch.ones(2)}, tmp_path / "second.safetensors")
    assert ids(repo.identify(tmp_path / "both.safetensors")) == [untied.id, tied.id]
    assert ids(repo.identify(tmp_path / "first.safetensors")) == [tied.id]
    assert ids(repo.identify(tmp_path / "second.safetensors")) == [tied.id]
    assert repo.identify({**apart, "head": weight + 1}) == []


def test_rolled_back_and_unfetched_versions_are_found_too(repo):
    first = repo.commit({"a": torch.ones(3)})
    second = repo.commit({"a": torch.zeros(3)})
    repo.rollback("main", first.id)
    assert ids(repo.identify({"a": torch.zeros(3)})) == [second.id]
    with deltavc.open(repo.url, db="sqlite://") as fresh:
        assert ids(fresh.identify({"a": torch.zeros(3)})) == [second.id]


def ordered(dtype, value):
    """The value's place among all values of its dtype, both zeros being one, the slow and obvious way."""
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return int(value.numpy())
    width = kind.itemsize
    bits = int.from_bytes(value.reshape(1).view(torch.uint8).numpy().tobytes(), "little")
    sign, magnitude = bits >> (8 * width - 1), bits & ((1 << (8 * width - 1)) - 1)
    return -magnitude if sign else magnitude


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_steps_are_counted_across_zero(dtype):
    for seed in range(40):
        old, new = states.random_bits(dtype, (5,), seed), states.random_bits(dtype, (5,), seed + 1000)
        expected = max(abs(ordered(dtype, a) - ordered(dtype, b)) for a, b in zip(old, new, strict=True))
        assert largest_step(dtype, lanes(old), lanes(new)) == expected


def test_known_steps(repo):
    def step(dtype, old, new):
        kind = getattr(torch, dtype)
        return largest_step(dtype, lanes(torch.tensor([old], dtype=kind)), lanes(torch.tensor([new], dtype=kind)))

    assert step("float32", 1.0, math.nextafter(1.0, 2.0)) == 0  # less than one step of float32
    assert step("float64", 1.0, math.nextafter(1.0, 2.0)) == 1
    assert step("float32", 0.0, -0.0) == 0
    tiny = struct.unpack("<f", struct.pack("<I", 1))[0]
    assert step("float32", tiny, -tiny) == 2
    assert step("bfloat16", 1.0, 1.0078125) == 1
    assert step("bool", True, False) == 1
    assert step("complex64", 1 + 1j, 1 + 1.0000001j) == 1
    assert step("complex128", 0j, complex(0, -5e-324)) == 1
    packed = [torch.tensor([byte], dtype=torch.int8) for byte in (0x19, 0x1A, 0x71)]
    assert largest_step("float4_e2m1fn_x2", packed[0], packed[1]) == 1
    assert largest_step("float4_e2m1fn_x2", packed[0], packed[2]) == 6
    assert largest_step("float8_e8m0fnu", packed[0], packed[1]) == 1


def test_a_difference_tells_of_every_stored_tensor(repo):
    weight = torch.zeros(100)
    old = {"same": torch.ones(5), "w": weight, "tied": weight, "gone": torch.ones(7), "c": torch.zeros(4) * 1j}
    old |= {"retyped": torch.ones(3), "reshaped": torch.ones(4), "wide": torch.zeros(6, dtype=torch.complex128)}
    new = {**old, "w": weight.clone(), "c": old["c"].clone(), "wide": old["wide"].clone()}
    del new["gone"], new["tied"]
    new["w"][3:8] = math.nan
    new["c"][1] = 1 + 1j
    new["wide"][2] = 5e-324 * (1 + 1j)
    new |= {"retyped": old["retyped"].half(), "reshaped": old["reshaped"].view(2, 2), "added": torch.ones(2)}
    a, b = repo.commit(old), repo.commit(new)
    found = repo.diff("main~1", "main")
    assert (found.a, found.b) == (a.id, b.id)
    by_name = {tensor.name: tensor for tensor in found.tensors}
    statuses = {name: tensor.status for name, tensor in by_name.items()}
    assert statuses == {
        "added": "added",
        "c": "changed",
        "gone": "dropped",
        "reshaped": "retyped",
        "retyped": "retyped",
        "same": "same",
        "tied": "dropped",
        "w": "added",
        "wide": "changed",
    }
    assert (by_name["c"].changed_elements, by_name["c"].num_elements, by_name["c"].density) == (1, 4, 0.25)
    assert (by_name["wide"].changed_elements, by_name["wide"].num_elements) == (1, 6)
    assert by_name["wide"].largest_step == 1
    assert (by_name["gone"].changed_elements, by_name["added"].changed_elements) == (7, 2)
    assert found.total.status == "changed"
    assert found.total.num_elements == sum(tensor.num_elements for tensor in found.tensors)
    assert found.as_json()["total"]["changed_elements"] == found.total.changed_elements
    nothing = repo.diff(a.id, a.id)
    assert (nothing.total.status, nothing.total.changed_elements, nothing.total.density) == ("same", 0, 0.0)
    with pytest.raises(UnknownRef):
        repo.diff("main", "nowhere")


def test_counts_of_changes_are_those_of_a_plain_comparison(repo):
    old = states.of_every_dtype()
    new = states.stepped(old, 3, 0.3)
    repo.commit(old)
    version = repo.commit(new)
    found = repo.diff("main~1", "main")
    for tensor in found.tensors:
        before, after = states.raw(old[tensor.name]), states.raw(new[tensor.name])
        differ = before != after
        if old[tensor.name].dtype is torch.complex128:
            differ = differ.view(-1, 2).any(1)
        assert (tensor.changed_elements, tensor.num_elements) == (int(differ.sum()), differ.numel())
    lanes_changed = sum(int((states.raw(old[name]) != states.raw(new[name])).sum()) for name in old)
    assert version.changed_lanes == lanes_changed
