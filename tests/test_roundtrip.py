"""What is checked out is bit for bit what was committed."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltavc
from deltavc import packing, walk
from deltavc.delta import codecs
from tests import states

CODECS = codecs.names()


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


@pytest.fixture
def small_frames(monkeypatch):
    """Tensors of many frames, packs of which parts are fetched."""
    monkeypatch.setattr(packing, "FRAME_BYTES", 64)
    monkeypatch.setattr(walk, "SMALL_PACK", 0)
    monkeypatch.setattr(walk, "MAX_GAP", 0)
    monkeypatch.setattr(walk, "MAX_RANGE", 1000)


def history(num_steps=3):
    return list(itertools.accumulate(range(1, num_steps + 1), states.stepped, initial=states.of_every_dtype()))


def check_all(repo, versions, expected):
    for version, state in zip(versions, expected, strict=True):
        found = repo.checkout(version.id)
        assert found.version == version.id
        assert states.same(found, state)


@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize("frames", ["whole tensors", "small frames"])
def test_every_dtype_comes_back_through_every_codec(repo, codec, frames, request):
    if frames == "small frames":
        request.getfixturevalue("small_frames")
    steps = history(2)
    with repo.writer(codec=codec) as writer:
        versions = [writer.commit(state, snapshot=number == 2) for number, state in enumerate(steps)]
    check_all(repo, versions, steps)


def test_codecs_may_differ_from_one_commit_to_the_next(repo):
    steps = history(2 * len(CODECS))
    chosen = [*CODECS, None, *reversed(CODECS)]
    with repo.writer() as writer:
        versions = [writer.commit(state, codec=codec) for state, codec in zip(steps, chosen, strict=True)]
        check_all(repo, versions, steps)
        for version, state in reversed(list(zip(versions, steps, strict=True))):
            live = states.stepped(state, 5, density=1.0)
            writer.move(version.id, into=live)
            assert states.same(live, state)


@pytest.mark.parametrize("keep", ["device", "host", "disk"])
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_base_is_kept_anywhere_and_in_any_memory(repo, keep, memory):
    steps = history()
    with repo.writer(keep=keep, memory=memory) as writer:
        versions = [writer.commit(state) for state in steps]
    check_all(repo, versions, steps)
    assert states.same(repo.checkout(memory=memory), steps[-1])


@pytest.mark.parametrize("density", [0.0, 0.001, 0.02, 0.3, 1.0])
def test_every_density_of_changes_comes_back(repo, density):
    state = {dtype: states.random_bits(dtype, (300, 70), 1) for dtype in states.DTYPES}
    with repo.writer() as writer:
        first = writer.commit(state)
        new = states.stepped(state, 2, density)
        second = writer.commit(new)
    check_all(repo, [first, second], [state, new])


def test_weights_with_nan_payloads_and_signed_zeros_differ_from_others(repo):
    payloads = torch.tensor([0x7FC00001, 0x7FC00002, -0x00400000, 0x7F800001, 0, -(2**31)], dtype=torch.int32)
    state = {"x": payloads.view(torch.float32)}
    other = {"x": payloads.flip(0).clone().view(torch.float32)}
    versions = [repo.commit(state), repo.commit(other)]
    assert versions[0].fingerprint != versions[1].fingerprint
    assert versions[1].changed_lanes == 6
    check_all(repo, versions, [state, other])


def test_strides_are_no_part_of_a_state(repo):
    base = states.random_bits("float32", (2, 3, 4, 5))
    forms = {
        "transposed": base.transpose(0, 3),
        "channels last": base.contiguous(memory_format=torch.channels_last),
        "sliced": base[:, ::2, 1:, ::3],
        "flipped": base.flip(1),
        "expanded": base[:1].expand(7, 3, 4, 5),
        "from one": torch.tensor(3.0).expand(5, 6),
        "conjugate": states.random_bits("complex64", (4, 4), 3).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "wide conjugate": torch.randn(4, 3, dtype=torch.complex128).t().conj(),
        "strided bytes": states.random_bits("float8_e4m3fn", (8, 8)).t(),
        "strided halves": states.random_bits("float4_e2m1fn_x2", (8, 8)).t(),
        "parameter": torch.nn.Parameter(torch.randn(3, 3)),
    }
    first = repo.commit(forms)
    assert states.same(repo.checkout(), forms)
    plain = {name: tensor.detach().resolve_conj().resolve_neg().clone() for name, tensor in forms.items()}
    second = repo.commit(plain)
    assert (second.changed_lanes, second.fingerprint) == (0, first.fingerprint)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=1000)


@settings(max_examples=15)
@given(st.lists(names, min_size=1, max_size=5, unique=True))
def test_any_characters_are_a_name(found):
    state = {name: states.random_bits("bfloat16", (3,), place) for place, name in enumerate(found)}
    with deltavc.init(f"memory://names-{hash(tuple(found))}-{id(state)}") as repo:
        repo.commit(state)
        assert states.same(repo.checkout(), state)
        assert list(repo.checkout(tensors=found[:1])) == found[:1]


def test_the_longest_and_the_oddest_names_are_kept(repo):
    odd = [
        "a" * 1000,
        "\x00",
        "/",
        "..",
        "a\nb",
        "*",
        "[a]",
        "deltavc.json",
        "é",
        "e\u0301",
        "\U0010ffff",
        " ",
        "'\"\\",
    ]
    state = {name: torch.full((2,), float(place)) for place, name in enumerate(odd)}
    repo.commit(state)
    assert states.same(repo.checkout(), state)
    for name in odd:
        assert name in repo.checkout(tensors=[name])


@pytest.mark.parametrize("cast", ["bfloat16", torch.float16, "float32", "float64"])
def test_a_cast_is_what_torch_casts(repo, cast):
    state = states.of_every_dtype()
    kind = cast if isinstance(cast, torch.dtype) else getattr(torch, cast)
    casts = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    expected = {name: tensor.to(kind) if tensor.dtype in casts else tensor for name, tensor in state.items()}
    repo.commit(state, dtype=cast)
    assert states.same(repo.checkout(), expected)


def test_what_absent_tensors_mean_is_the_callers_choice(repo):
    state = {"a": torch.randn(5), "b": torch.randn(6), "c": torch.randn(7)}
    first = repo.commit(state)
    part = {"b": torch.randn(6), "d": torch.randn(2)}
    merged = repo.commit(part, partial=True)
    assert states.same(repo.checkout(), {**state, **part})
    assert merged.changed_lanes <= 8
    dropped = repo.commit(part)
    assert states.same(repo.checkout(), part)
    check_all(repo, [first, merged, dropped], [state, {**state, **part}, part])


def test_the_first_commit_may_be_partial(repo):
    repo.commit({"a": torch.ones(3)}, partial=True)
    assert states.same(repo.checkout(), {"a": torch.ones(3)})
