"""Whatever holds tensors becomes the same view, and what cannot be committed is named."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from deltavc.change import Box
from deltavc.errors import BadState, UnsupportedDtype
from deltavc.lanes import lanes
from deltavc.layout import LANE_BYTES
from deltavc.weights.state import open_state
from tests.weights.samples import every_bit_pattern, same_bits, write_raw


def whole(view, name):
    spec = view.layout.tensors[view.layout.place[name]]
    return view.lanes(name, Box.whole(spec.lane_shape))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def test_a_module_is_its_parameters_and_persistent_buffers_with_ties():
    module = Tied()
    view = open_state(module)
    assert [(spec.name, spec.tie) for spec in view.layout.tensors] == [
        ("embed.weight", None),
        ("head.weight", "embed.weight"),
        ("mean", None),
    ]
    assert list(view.tensors) == ["embed.weight", "mean"]
    bits = whole(view, "embed.weight")
    assert bits.data_ptr() == module.embed.weight.data_ptr()
    assert not bits.requires_grad


def test_mappings_pairs_and_paths_give_the_same_view(tmp_path):
    state = {"b": torch.randn(3, 4), "a": torch.arange(5)}
    save_file(state, tmp_path / "x.safetensors")
    (tmp_path / "config.json").write_text("{}")
    torch.save(state, tmp_path / "x.pt")
    forms = [state, list(state.items()), iter(state.items()), ((k, v) for k, v in state.items())]
    forms += [tmp_path / "x.safetensors", str(tmp_path / "x.pt"), tmp_path]
    for form in forms:
        view = open_state(form)
        assert view.layout == open_state(state).layout
        assert all((whole(view, name) == lanes(state[name])).all() for name in state)
    assert list(view.extras) == ["config.json"]
    assert view.source["files"][0]["name"] == "x.safetensors"


def test_only_names_of_one_tensor_are_tied():
    base = torch.randn(4, 4)
    complex_ = torch.randn(4, dtype=torch.complex64)
    state = {
        "a": base,
        "b": base.detach(),
        "c": base.view(4, 4),
        "t": base.t(),
        "row": base[0],
        "bits": base.view(torch.int32),
    }
    state |= {"x": complex_, "y": complex_.conj(), "e1": torch.zeros(0), "e2": torch.zeros(0), "copy": base.clone()}
    ties = {spec.name: spec.tie for spec in open_state(state).layout.tensors if spec.tie}
    assert ties == {"b": "a", "c": "a"}


@pytest.mark.parametrize("dtype", sorted(LANE_BYTES))
def test_lanes_of_a_box_are_those_of_the_tensor(dtype):
    tensor = every_bit_pattern(dtype)
    view = open_state({"w": tensor})
    bits = whole(view, "w")
    assert bits.data_ptr() == tensor.data_ptr()
    assert (bits == lanes(tensor)).all()
    lengths = (3, *bits.shape[1:])
    assert view.lanes("w", Box((2,) + (0,) * (bits.dim() - 1), lengths)).data_ptr() == lanes(tensor)[2:].data_ptr()


@given(st.data())
def test_any_box_of_any_strides_is_contiguous_and_exact(data):
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.complex128, torch.complex64, torch.uint8]))
    tensor = torch.randn(3, 4, 5, 6).to(dtype)
    tensor = data.draw(
        st.sampled_from(
            [tensor, tensor.permute(3, 1, 0, 2), tensor[::2], tensor[:1].expand(4, 4, 5, 6), tensor[0, 0, 0, 0]]
            + ([tensor.conj()] if dtype.is_complex else [])
        )
    )
    bits = lanes(tensor)
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in bits.shape]
    box = Box(tuple(low for low, _ in bounds), tuple(high - low for low, high in bounds))
    found = open_state({"w": tensor}).lanes("w", box)
    assert found.is_contiguous()
    assert found.shape == box.lengths
    assert (found == bits[box.index]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, torch.float32, "torch.float64"])
def test_casting_touches_the_wide_floats_and_nothing_else(tmp_path, dtype):
    state = {name: every_bit_pattern(name) for name in LANE_BYTES if name != "complex128"}
    save_file(state, tmp_path / "x.safetensors")
    name = str(dtype).removeprefix("torch.")
    floats = {"bfloat16", "float16", "float32", "float64"}
    for form in (state, tmp_path):
        view = open_state(form, dtype=dtype)
        for spec in view.layout.tensors:
            expected = state[spec.name].to(getattr(torch, name)) if spec.name in floats else state[spec.name]
            assert spec.dtype == (name if spec.name in floats else spec.name)
            assert (whole(view, spec.name) == lanes(expected)).all()


def test_casting_keeps_ties_and_needs_a_wide_float():
    assert [spec.tie for spec in open_state(Tied(), dtype="bfloat16").layout.tensors] == [None, "embed.weight", None]
    for dtype in ("float8_e4m3fn", torch.int8, "nonsense", "complex64"):
        with pytest.raises(BadState, match="dtype= can be bfloat16, float16, float32, float64, not"):
            open_state({"w": torch.ones(1)}, dtype=dtype)


def test_a_cast_box_is_all_that_is_in_memory_twice():
    view = open_state({"w": torch.randn(1000, 10)}, dtype="bfloat16")
    assert view.lanes("w", Box((5, 0), (2, 10))).untyped_storage().nbytes() == 40


def test_tensors_at_odd_places_of_a_file_are_aligned_when_read(tmp_path):
    header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    path = write_raw(tmp_path / "x.safetensors", header, torch.tensor([1.0, -0.0]).numpy().tobytes(), pad=1)
    for filler in range(8):
        write_raw(path, header | {"__metadata__": {"x": "y" * filler}}, path.read_bytes()[-8:], pad=1)
        bits = whole(open_state(path), "w")
        assert bits.data_ptr() % 4 == 0
        assert bits.tolist() == [0x3F800000, -(2**31)]


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def wrapped():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.ones(2, device="meta"), "is on the meta device"),
        (lambda: 3, "is not a tensor but a int"),
        (lambda: None, "is not a tensor but a NoneType"),
        (lambda: torch.eye(2).to_sparse(), "is not dense but sparse_coo"),
        (nested, "is a NestedTensor, whose values are not in a storage of its own"),
        (wrapped, "is a FakeTensor, whose values are not in a storage of its own"),
        (lambda: torch.nn.LazyLinear(2).weight, "is a lazy parameter"),
        (lambda: torch.nn.parameter.UninitializedBuffer(), "is a lazy parameter"),
    ],
)
def test_what_has_no_values_of_its_own_is_named(make, says):
    for state in ({"ok": torch.ones(1), "bad": make()}, [("bad", make())]):
        with pytest.raises(BadState, match=f"tensor 'bad' {says}"):
            open_state(state)


def test_compressed_sparse_and_quantised_tensors_are_named():
    code = """
import warnings; warnings.simplefilter("ignore")
import torch
from deltavc.errors import BadState
from deltavc.weights.state import open_state
for make in (
    lambda: torch.eye(2).to_sparse_csr(),
    lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    lambda: torch.ones(2, 2).to_mkldnn(),
):
    try:
        open_state({"bad": make()})
    except BadState as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    starts = ["is not dense but sparse_csr", "is quantised", "is not dense but nested", "is not dense but _mkldnn"]
    lines = done.stdout.splitlines()
    assert len(lines) == len(starts)
    assert all(f"tensor 'bad' {start}" in line for line, start in zip(lines, starts, strict=True))


def test_a_sharded_tensor_is_refused_as_not_supported_yet(tmp_path):
    code = f"""
import torch, torch.distributed as dist
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard
from deltavc.errors import BadState
from deltavc.weights.state import open_state
dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
sharded = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
for tensor in (sharded, torch.nn.Parameter(sharded)):
    try:
        open_state({{"bad": tensor}})
    except BadState as error:
        print(error)
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("tensor 'bad' is a DTensor, of which this process holds a part: commit with group=") == 2


def test_subclasses_that_only_carry_attributes_are_plain_tensors():
    class Marked(torch.nn.Parameter):
        pass

    tensor = Marked(torch.randn(3))
    assert (whole(open_state({"w": tensor}), "w") == lanes(tensor)).all()


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "there are no tensors"),
        (iter(()), "there are no tensors"),
        ({1: torch.ones(1)}, "1 is not a name"),
        ([(1, torch.ones(1))], "1 is not a name"),
        ([("a", torch.ones(1)), ("a", torch.ones(1))], "tensor 'a' appears twice"),
        ([torch.ones(1)], "gave a Tensor"),
        ([("a", torch.ones(1), 1)], "gave a tuple"),
        (3, "a int is not a state"),
        (None, "a NoneType is not a state"),
        (b"path", "a bytes is not a state"),
        (torch.ones(2, 2), "a Tensor is not a state"),
        ({"": torch.ones(1)}, "has a name of 0 characters"),
        ({"x" * 1001: torch.ones(1)}, "has a name of 1001 characters"),
        ({"\ud800": torch.ones(1)}, "cannot be written as UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_a_state_is_refused(state, says):
    with pytest.raises(BadState, match=says):
        open_state(state)


def test_a_generator_that_reuses_its_buffer_is_refused():
    buffer = torch.empty(3)
    with pytest.raises(BadState, match="tensor 'a' was written to after"):
        open_state((name, buffer.fill_(value)) for value, name in enumerate("ab"))
    with torch.inference_mode():
        tensor = torch.ones(2)
    assert open_state([("w", tensor)]).tensors["w"] is tensor


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_dtypes_without_lanes_are_named():
    with pytest.raises(UnsupportedDtype, match="dtype complex32 of tensor 'w'"):
        open_state({"w": torch.empty(2, dtype=torch.complex32)})


def test_names_of_any_characters_up_to_a_thousand_are_kept():
    names = ["😀" * 1000, "a\x00b", "../x", "\u202e", " "]
    assert [spec.name for spec in open_state({name: torch.ones(1) for name in names}).layout.tensors] == sorted(names)


def test_reading_a_checkpoint_box_by_box_takes_little_memory_of_its_own(tmp_path):
    """In a process of its own: anonymous memory after reading 256 MiB, cast, in boxes of 1 MiB."""
    save_file({f"w{n}": torch.zeros(16, 1 << 20) for n in range(4)}, tmp_path / "x.safetensors")
    code = f"""
import torch
from deltavc.change import Box
from deltavc.weights.describe import describe
from deltavc.weights.output import write_checkpoint
from deltavc.weights.state import open_state
def peak():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) >> 10
view = open_state({str(tmp_path)!r}, dtype="bfloat16")
before, most = peak(), 0
for name in view.tensors:
    for row in range(16):
        view.lanes(name, Box((row, 0), (1, 1 << 20)))
        most = max(most, peak())
plain = open_state({str(tmp_path)!r})
write_checkpoint({str(tmp_path / "out")!r}, plain.tensors.items(), plain.layout, plain.source)
print(max(most, peak()) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 48
    assert same_bits(open_state(tmp_path / "out").tensors["w3"], torch.zeros(16, 1 << 20))
