"""Any version into any arrangement: in place, bit for bit, from no more than the frames that meet it."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Sharded

import deltavc
from deltavc import Shard
from deltavc.errors import LayoutMismatch, PeerFailed
from tests.faults import faulty
from tests.replica.ranks import ends_of, in_ranks
from tests.replica.samples import line_of, small_state
from tests.sharded import parts
from tests.sharded.test_commit import states
from tests.states import of_every_dtype, random_bits, same_tensor
from tests.test_faults import opened


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A repository with a line of versions, committed by ranks in different parts, and their states."""
    with deltavc.init(tmp_path_factory.mktemp("checkout") / "repo") as repo:
        in_ranks(4, committed, repo.url)
        yield repo.url, states(4)


def committed(rank, url, place=None):
    with deltavc.open(url, **(place or {"db": "sqlite://"})) as repo:
        for state, way in zip(
            states(4), [parts.by_rows, parts.by_columns, parts.in_stages, parts.in_blocks], strict=True
        ):
            repo.commit(way(rank, 4, state), group=dist.group.WORLD, timeout=30.0)


def blank(held):
    """The same parts, with zeros in them."""
    return {
        name: Shard(zeros(part.tensor), part.global_shape, part.offsets) if isinstance(part, Shard) else zeros(part)
        for name, part in held.items()
    }


def zeros(tensor):
    made = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    made.untyped_storage().fill_(0)
    return made


def same_parts(held, expected):
    assert held.keys() == expected.keys()
    return all(
        same_tensor(getattr(held[name], "tensor", held[name]), getattr(expected[name], "tensor", expected[name]))
        for name in expected
    )


def checked_out(rank, url, way, size, group, place=None):
    with deltavc.open(url, **(place or {"db": "sqlite://"})) as repo:
        for back, state in enumerate(reversed(states(4))):
            held = blank(way(rank, size, state))
            found = repo.checkout(
                f"main~{back}", into=held, **({"group": dist.group.WORLD, "timeout": 30.0} if group else {})
            )
            assert found.version == repo.resolve(f"main~{back}")
            assert found == held
            assert same_parts(held, way(rank, size, state))
    return True


@pytest.mark.parametrize(
    ("size", "way"),
    [
        (1, parts.copied),
        (2, parts.by_columns),
        (3, parts.unevenly),
        (4, parts.in_blocks),
        (3, parts.in_stages),
        pytest.param(8, parts.by_rows, marks=pytest.mark.long),
    ],
)
def test_what_4_ranks_committed_any_number_checks_out_in_any_parts(line, size, way):
    assert all(in_ranks(size, checked_out, line[0], way, size, True))


@pytest.mark.long
@pytest.mark.servers
def test_what_4_ranks_committed_to_s3_and_postgresql_any_number_checks_out(s3, postgres):
    url, place = s3.new_bucket(), {"db": postgres.new_database(), "storage_options": s3.storage_options}
    deltavc.init(url, **place).close()
    in_ranks(4, committed, url, place)
    for size, way in [(1, parts.copied), (2, parts.by_columns), (3, parts.unevenly), (8, parts.by_rows)]:
        assert all(in_ranks(size, checked_out, url, way, size, True, place))


def test_parts_are_checked_out_without_a_group_too(line):
    url, _ = line
    for way in (parts.by_rows, parts.by_columns, parts.unevenly, parts.in_blocks):
        for rank in range(3):
            assert checked_out(rank, url, way, 3, False)


def into_dtensors(rank, url):
    mesh = init_device_mesh("cpu", (2, 2))
    state = states(4)[-1]
    placed = {
        "embed": [Sharded(0), Sharded(1)],
        "norm": [Replicate(), Replicate()],
        "scale": [Replicate(), Replicate()],
        "weight": [Sharded(1), Replicate()],
    }
    with deltavc.open(url, db="sqlite://") as repo:
        live = {name: distribute_tensor(torch.zeros_like(state[name]), mesh, placed[name]) for name in placed}
        repo.checkout("main", into=live, group=dist.group.WORLD, timeout=30.0)
        assert all(same_tensor(live[name].full_tensor(), state[name]) for name in placed)
        with repo.replica_group(live, at="main", timeout=30.0) as group:
            group.move("main~3")
        first = states(1)[0]
        assert all(same_tensor(live[name].full_tensor(), first[name]) for name in placed)
    return True


def test_dtensors_are_checked_out_into_and_moved(line):
    assert all(in_ranks(4, into_dtensors, line[0]))


def test_every_dtype_is_cut_where_it_is_held(tmp_path):
    state = of_every_dtype()
    with line_of(tmp_path / "repo", 3, state) as (repo, versions):
        for version, expected in versions.items():
            for way in (parts.by_rows, parts.by_columns, parts.unevenly):
                for rank in range(2):
                    held = blank(way(rank, 2, expected))
                    repo.checkout(version, into=held)
                    assert same_parts(held, way(rank, 2, expected))


def test_no_more_is_read_than_meets_what_is_held(tmp_path):
    url = str(tmp_path / "repo")
    state = {f"layer.{number}": random_bits("bfloat16", (64, 1 << 15), number) for number in range(4)}
    with deltavc.init(url) as repo:
        repo.commit(state)
    store = faulty(url)
    nbytes = []
    get = store._store.get

    def counting(key, start=0, size=None):
        body = get(key, start, size)
        nbytes.append(len(body))
        return body

    store._store.get = counting
    with opened(store) as repo:
        held = {"layer.2": Shard(torch.zeros(8, 1 << 15, dtype=torch.bfloat16), (64, 1 << 15), (8, 0))}
        repo.checkout("main", into=held)
        assert same_parts(held, {"layer.2": Shard(state["layer.2"][8:16].clone(), (64, 1 << 15), (8, 0))})
    assert sum(nbytes) < 1.4 * (4 << 20)  # one frame of four, which is the whole of one tensor


def test_of_the_packs_of_many_ranks_those_of_others_cost_an_index_each(tmp_path):
    url = str(tmp_path / "repo")
    state = {"wide": random_bits("float32", (8, 1 << 16), 1)}
    deltavc.init(url).close()
    in_ranks(4, raw_rows, url)
    store = faulty(url)
    with opened(store) as repo:
        held = {"wide": Shard(torch.zeros(2, 1 << 16), (8, 1 << 16), (2, 0))}
        repo.resolve("main")
        store.calls.clear()
        repo.checkout("main", into=held)
        assert same_parts(held, {"wide": Shard(state["wide"][2:4].clone(), (8, 1 << 16), (2, 0))})
        assert len([key for name, key in store.calls if name == "get" and key.startswith("packs/")]) == 4 + 1


def raw_rows(rank, url):
    state = {"wide": random_bits("float32", (8, 1 << 16), 1)}
    with deltavc.open(url, db="sqlite://") as repo:
        held = parts.by_rows(rank, 4, state)
        repo.commit(held, group=dist.group.WORLD, timeout=30.0)


def damaged(rank, url, spoil):
    with deltavc.open(url, db="sqlite://") as repo:
        held = blank(parts.by_rows(rank, 2, small_state()))
        error = ends_of(lambda: repo.checkout("main", into=spoil(rank, held), group=dist.group.WORLD, timeout=20.0))
        held = blank(parts.by_rows(rank, 2, small_state()))
        repo.checkout("main~3", into=held, group=dist.group.WORLD, timeout=20.0)
        return error, same_parts(held, parts.by_rows(rank, 2, states(1)[0]))


def other_shape(rank, held):
    if rank == 1:
        held["norm"] = torch.zeros(3)
    return held


def missing(rank, held):
    del held["weight"]
    return held


def half(rank, held):
    if rank == 1:
        del held["weight"]
    return held


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (missing, "'weight' is in the version, and no rank holds it"),
        (half, "'weight' has 3072 of 6144 lanes that no rank holds"),
    ],
)
def test_a_version_of_which_ranks_lack_something_is_refused_everywhere(line, spoil, words):
    for error, again in in_ranks(2, damaged, line[0], spoil):
        assert isinstance(error, LayoutMismatch)
        assert words in str(error)
        assert again


def test_a_rank_that_does_not_fit_is_named_to_the_others(line):
    (first, _), (second, _) = in_ranks(2, damaged, line[0], other_shape)
    assert isinstance(second, LayoutMismatch)
    assert (type(first), first.rank, first.failure) == (PeerFailed, 1, "layout_mismatch")


def patterns(rank, url):
    with deltavc.open(url, db="sqlite://") as repo:
        held = blank(parts.by_rows(rank, 2, small_state()))
        repo.checkout("main", into=held, tensors=["embed", "s*"], group=dist.group.WORLD, timeout=20.0)
        expected = parts.by_rows(rank, 2, states(4)[-1])
        untouched = blank(expected)
        return same_parts(
            held, {name: (expected if name in ("embed", "scale") else untouched)[name] for name in expected}
        )


def test_some_tensors_are_checked_out_and_the_others_left_alone(line):
    assert in_ranks(2, patterns, line[0]) == [True, True]
