"""States for end-to-end tests: every dtype as random bits, odd shapes and strides, and ways in which they change."""

import torch

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float4_e2m1fn_x2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
]
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_bits(dtype, shape, seed=0):
    """A tensor of any bits at all: NaN payloads, -0.0, denormals and infinities among them."""
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator(seed)).bool()
    if dtype == "complex128":
        return torch.view_as_complex(random_bits("int64", (*shape, 2), seed).view(torch.float64))
    width = _WIDTHS[kind.itemsize]
    low = 0 if width is torch.uint8 else torch.iinfo(width).min
    return torch.randint(low, torch.iinfo(width).max, shape, dtype=width, generator=generator(seed)).view(kind)


def raw(tensor):
    """The tensor's bits as integers of its element size, row-major."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_WIDTHS[tensor.dtype.itemsize]).contiguous().reshape(-1)


def same_tensor(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(raw(one), raw(other))


def same(found, expected):
    """Whether two states have the same names in any order, and under each the same bits in the same form."""
    return found.keys() == expected.keys() and all(same_tensor(found[name], expected[name]) for name in expected)


def copied(state):
    """A state that does not change when the other one does; ties are kept."""
    copies = {}
    return {name: copies.setdefault(id(tensor), tensor.detach().clone()) for name, tensor in state.items()}


def of_every_dtype(seed=0):
    """Every dtype in shapes of no elements, no dimensions, one and three dimensions."""
    state = {}
    for number, dtype in enumerate(DTYPES):
        for shape in ((3, 5, 7), (), (0,), (4, 0, 2), (129,)):
            name = f"{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"
            state[name] = random_bits(dtype, shape, seed * 1000 + number)
    return state


def changed(tensor, seed, density=0.1):
    """A copy in which about this share of the elements has other bits."""
    bits = tensor.detach().clone()
    lanes = torch.view_as_real(bits) if bits.dtype is torch.complex128 else bits
    lanes = lanes.view(_WIDTHS[lanes.dtype.itemsize]) if lanes.dtype is not torch.bool else lanes
    chosen = torch.rand(lanes.shape, generator=generator(seed)) < density
    new = raw(random_bits(str(tensor.dtype).removeprefix("torch."), tensor.shape, seed + 1)).view(lanes.shape)
    lanes[chosen] = new.to(lanes.dtype)[chosen]
    return bits


def stepped(state, seed, density=0.1):
    """A training step: some elements of every tensor change, ties stay."""
    new = {}
    return {
        name: new.setdefault(id(tensor), changed(tensor, seed * 7919 + place, density))
        for place, (name, tensor) in enumerate(state.items())
    }


def restructured(state, seed):
    """Another architecture: one tensor new, dropped, reshaped, retyped, renamed, tied or untied, as chance has it."""
    pick = generator(seed)

    def one_of(items):
        items = list(items)
        return items[int(torch.randint(len(items), (), generator=pick))]

    state = dict(state)
    kind = one_of(("new", "dropped", "reshaped", "retyped", "renamed", "tied", "untied"))
    name = one_of(state)
    if kind == "new":
        state[f"new.{seed}"] = random_bits(one_of(DTYPES), one_of(((), (7,), (3, 4), (0, 2))), seed)
    elif kind == "dropped" and len(state) > 1:
        del state[name]
    elif kind == "reshaped":
        state[name] = state[name].reshape(-1).clone()
    elif kind == "retyped":
        state[name] = random_bits(one_of(DTYPES), state[name].shape, seed)
    elif kind == "renamed":
        state[f"renamed.{seed}"] = state.pop(name)
    elif kind == "tied":
        state[one_of(state)] = state[name]
    elif kind == "untied":
        state[name] = state[name].clone()
    return state
