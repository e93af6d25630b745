"""What ranks commit in parts is what one process commits whole, whatever the parts are."""

import itertools
import secrets

import pytest
import torch
import torch.distributed as dist

import deltavc
from deltavc import Shard
from deltavc.errors import BadMetadata, BadState, BranchMoved, CopiesDiffer, PeerFailed, UnknownRef
from tests.replica.ranks import ends_of, in_ranks
from tests.replica.samples import small_state
from tests.sharded import parts
from tests.states import of_every_dtype, random_bits, restructured, same, same_tensor, stepped

SIZE = 4


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


def states(count, start=0, make=small_state):
    """A run of states; the same in every process."""
    found = itertools.accumulate(range(start + count - 1), lambda state, n: stepped(state, n + 1, 0.05), initial=make())
    return list(found)[start:]


def opened(url, timeout=30.0, **options):
    repo = deltavc.open(url, db="sqlite://")
    return repo, repo.writer("main", group=dist.group.WORLD, timeout=timeout, **options)


def run(rank, url, size, start, way, count, options):
    repo, writer = opened(url, **options)
    with repo, writer:
        committed = [
            writer.commit(way(rank, size, state), step=start + number)
            for number, state in enumerate(states(count, start))
        ]
        return [(version.id, version.fingerprint, version.changed_lanes, version.stored_bytes) for version in committed]


def check(repo, count, make=small_state):
    """Whether every step is there, bit for bit, with the fingerprint of the same weights unsharded."""
    with deltavc.init(f"memory://{secrets.token_hex(4)}") as whole:
        for step, state in enumerate(states(count, make=make)):
            assert same(repo.checkout(f"step:{step}"), state)
            assert repo.version(f"step:{step}").fingerprint == whole.commit(state).fingerprint
    assert not repo.fsck().problems


@pytest.mark.parametrize("way", parts.WAYS)
def test_parts_of_any_kind_make_up_the_whole(repo, way):
    outcomes = in_ranks(SIZE, run, repo.url, SIZE, 0, way, 4, {})
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert [version.id for version in reversed(repo.log())] == [each[0] for each in outcomes[0]]
    check(repo, 4)


def test_a_run_goes_on_with_other_numbers_of_ranks_and_other_parts(repo):
    in_ranks(4, run, repo.url, 4, 0, parts.by_rows, 2, {})
    in_ranks(2, run, repo.url, 2, 2, parts.by_columns, 2, {"keep": "disk"})
    with repo.writer("main") as alone:
        alone.commit(states(1, 4)[0], step=4)
    in_ranks(3, run, repo.url, 3, 5, parts.unevenly, 2, {"keep": "host"})
    in_ranks(1, run, repo.url, 1, 7, parts.copied, 1, {})
    check(repo, 8)
    assert all(edge.base is not None for step in range(1, 8) for edge in repo.edges(f"step:{step}"))


def every_dtype(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        state = of_every_dtype()
        for way in (parts.by_rows, parts.by_columns, parts.copied):
            writer.commit(way(rank, 2, state), step=writer_step(writer, repo))
            state = stepped(state, 1)


def writer_step(writer, repo):
    return 0 if writer.version is None else repo.version(writer.version).step + 1


def test_every_dtype_and_shape_is_cut_and_put_together_again_while_the_parts_change(repo):
    in_ranks(2, every_dtype, repo.url)
    state = of_every_dtype()
    for step in range(3):
        assert same(repo.checkout(f"step:{step}"), state)
        state = stepped(state, 1)


def snapshots(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        for step, state in enumerate(states(3)):
            state["norm"] = small_state()["norm"]
            writer.commit(parts.in_blocks(rank, SIZE, state), step=step, snapshot=step > 0)


def test_snapshots_are_written_by_all_and_use_again_what_did_not_change(repo):
    in_ranks(SIZE, snapshots, repo.url)
    for step, state in enumerate(states(3)):
        state["norm"] = small_state()["norm"]
        assert same(repo.checkout(f"step:{step}"), state)
    whole = [edge for edge in repo.edges("step:2") if edge.base is None]
    assert len(whole) == 1
    assert any(use.frames is not None for use in whole[0].packs)


def restructuring(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        state = small_state()
        for seed in range(8):
            writer.commit(parts.by_rows(rank, 2, state), step=seed)
            state = restructured(state, seed)


def test_tensors_come_go_and_change_their_form(repo):
    in_ranks(2, restructuring, repo.url)
    state = small_state()
    for seed in range(8):
        found = repo.checkout(f"step:{seed}")
        assert found.keys() == state.keys()
        assert same(found, state)
        state = restructured(state, seed)


def tied(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        state = small_state()
        held = parts.by_rows(rank, 2, state)
        held["head"] = held["embed"]  # tied on both
        held["bias"] = held["scale"] if rank == 0 else held["scale"].clone()  # on one only
        writer.commit(held)


def test_what_is_tied_on_every_rank_is_tied(repo):
    in_ranks(2, tied, repo.url)
    state = small_state()
    found = repo.checkout("main")
    assert same(found, state | {"head": state["embed"], "bias": state["scale"]})
    ties = {tensor["name"]: tensor["tie"] for tensor in repo.tensors("main")}
    assert {name for name, tie in ties.items() if tie} == {"head"}
    with deltavc.init(f"memory://{secrets.token_hex(4)}") as whole:
        state |= {"head": state["embed"], "bias": state["scale"].clone()}
        assert whole.commit(state).fingerprint == repo.version("main").fingerprint


def shared_out(rank, url):
    state = {f"{number}": random_bits("float32", (1 << 18,), number) for number in range(8)}
    state["large"] = random_bits("bfloat16", (12, 1 << 20), 9)
    repo, writer = opened(url)
    with repo, writer:
        writer.commit(state, codec="raw")
        return sum(lanes.nbytes for held in writer._stance.base.lanes._lanes.values() for lanes in held.values())


def test_what_all_hold_is_written_once_and_shared_out_by_bytes(repo):
    nbytes = in_ranks(2, shared_out, repo.url)
    total = 8 * (1 << 20) + 24 * (1 << 20)
    assert sum(nbytes) == total
    assert max(nbytes) <= 0.6 * total
    assert sum(edge.nbytes for edge in repo.edges("main")) == total


def told(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        held = parts.by_rows(rank, 2, small_state())
        files = {"config.json": b"{}", f"rng.{rank}": bytes([rank]) * 9}
        version = writer.commit(
            held, f"by {rank}", step=7, metrics={"loss": rank}, meta={"rank": rank}, files=files, author=f"a{rank}"
        )
        again = writer.commit(held, files=files, metrics={"loss": rank + 1})
        future = writer.commit_async(held, step=8)
        return version, again.stored_bytes, future.result().step


def test_rank_0_speaks_for_all_and_files_are_kept_of_all(repo):
    outcomes = in_ranks(2, told, repo.url)
    for version, again, step in outcomes:
        assert (version.message, version.step, version.metrics) == ("by 0", 7, {"loss": 0})
        assert (version.meta, version.author) == ({"rank": 0}, "a0")
        assert version.files == {"config.json": 2, "rng.0": 9, "rng.1": 9}
        assert again == 0
        assert step == 8
    assert repo.read_file("main~2", "rng.1") == bytes([1]) * 9


def once(rank, url, held_by, told):
    with deltavc.open(url, db="sqlite://") as repo:
        held = held_by(rank)
        error = ends_of(lambda: repo.commit(held, group=dist.group.WORLD, timeout=20.0, **told(rank)))
        good = repo.commit(parts.by_rows(rank, 2, small_state()), group=dist.group.WORLD, timeout=20.0)
        return error, good.id


def other_shape(rank):
    return {"a": torch.zeros(4, 2 + rank), "b": torch.zeros(3)}


def other_dtype(rank):
    return {"a": torch.zeros(4), "b": torch.zeros(3, dtype=[torch.float32, torch.bfloat16][rank])}


def overlapping(rank):
    return {"a": Shard(torch.zeros(3, 2), (5, 2), (2 * rank, 0))}


def incomplete(rank):
    return {"a": Shard(torch.zeros(2, 2), (5, 2), (2 * rank, 0))}


def nothing(rank):
    return {}


def no_tensor(rank):
    return {"a": torch.zeros(3), "b": "no" if rank else torch.zeros(2)}


def diverged(rank):
    state = parts.apart(parts.in_blocks(rank, 2, small_state()))
    parts.bits(state["norm"])[3] += rank
    return state


def fine(rank):
    return parts.by_rows(rank, 2, small_state())


@pytest.mark.parametrize(
    ("held_by", "words"),
    [
        (other_shape, "tensor 'a' is float32 [4, 2] on rank 0, and float32 [4, 3] on rank 1"),
        (other_dtype, "tensor 'b' is float32 [3] on rank 0, and bfloat16 [3] on rank 1"),
        (overlapping, "tensor 'a' is held in parts that overlap without being equal: [3, 2] at [0, 0] on rank 0"),
        (incomplete, "tensor 'a' has 2 of 10 lanes that no rank holds; parts of it are on rank 0, 1"),
        (nothing, "no tensors in this state on any rank"),
    ],
)
def test_parts_that_make_no_state_are_refused_everywhere_and_named(repo, held_by, words):
    for error, _ in in_ranks(2, once, repo.url, held_by, lambda_none):
        assert isinstance(error, BadState)
        assert words in str(error)
    assert len(repo.log()) == 1


def lambda_none(rank):
    return {}


def steps(rank):
    return {"step": rank}


def bad_metric(rank):
    return {"metrics": {"loss": "no" if rank else 1}}


def misspelt(rank):
    return {"metric": {}}


@pytest.mark.parametrize(
    ("held_by", "told", "kinds"),
    [
        (no_tensor, lambda_none, (PeerFailed, BadState)),
        (fine, steps, (BadMetadata, BadMetadata)),
        (fine, bad_metric, (PeerFailed, BadMetadata)),
        (fine, misspelt, (TypeError, TypeError)),
        (diverged, lambda_none, (CopiesDiffer, CopiesDiffer)),
    ],
)
def test_what_one_rank_cannot_commit_none_does(repo, held_by, told, kinds):
    outcomes = in_ranks(2, once, repo.url, held_by, told)
    assert tuple(type(error) for error, _ in outcomes) == kinds
    assert len(repo.log()) == 1
    assert same(repo.checkout("main"), small_state())


def diverging(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        first, second = states(2)
        writer.commit(parts.copied(rank, 3, first), step=0)
        held = parts.apart(parts.copied(rank, 3, second))
        if rank == 1:
            parts.bits(held["norm"])[5] ^= 1
        error = ends_of(writer.commit, held)
        version = writer.version
        writer.commit(parts.copied(rank, 3, second), step=1)
        return error.tensor, error.ranks, version


def test_copies_that_diverge_are_named_with_their_ranks_and_the_next_commit_is_a_change_from_before(repo):
    outcomes = in_ranks(3, diverging, repo.url)
    first = repo.resolve("step:0")
    assert outcomes == [("norm", ((0, 2), (1,)), first)] * 3
    assert repo.version("main").parents == (first,)
    check(repo, 2)


def moved(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        first, second = states(2)
        version = writer.commit(parts.by_rows(rank, 2, first), step=0)
        dist.barrier()
        if rank == 1:
            with deltavc.open(url, db="sqlite://") as other:
                other.commit(second, message="in between")
        dist.barrier()
        error = ends_of(writer.commit, parts.by_rows(rank, 2, second))
        again = ends_of(writer.commit, parts.by_rows(rank, 2, second))
        return error, again, version.id


def test_a_branch_that_another_writer_moved_is_told_by_every_rank(repo):
    for error, again, first in in_ranks(2, moved, repo.url):
        assert isinstance(error, BranchMoved)
        assert isinstance(again, BranchMoved)
        assert (error.expected, error.found) == (first, repo.resolve("main"))
    assert [version.message for version in repo.log()] == ["in between", ""]


def nowhere(rank, url):
    with deltavc.open(url, db="sqlite://") as repo:
        return ends_of(lambda: repo.writer("no", group=dist.group.WORLD, timeout=20.0))


def test_a_branch_that_is_not_there_is_told_by_every_rank(repo):
    repo.commit(small_state())
    first, second = in_ranks(2, nowhere, repo.url)
    assert isinstance(first, UnknownRef)
    assert (second.kind, second.failure) == ("peer_failed", "unknown_ref")


def test_without_a_process_group_the_error_says_what_to_do(repo):
    with pytest.raises(BadState, match="init_process_group"):
        repo.writer("main", group=object())


def back_and_forth(rank, url):
    repo, writer = opened(url)
    with repo, writer:
        all_states = states(4)
        ids = [writer.commit(parts.in_blocks(rank, SIZE, state), step=step).id for step, state in enumerate(all_states)]
        live = parts.apart(parts.in_blocks(rank, SIZE, all_states[-1]))
        writer.rollback("step:1", reason="worse", into=live)
        assert writer.version == ids[1]
        assert held_as(live, parts.in_blocks(rank, SIZE, all_states[1]))
        again = writer.commit(parts.in_blocks(rank, SIZE, all_states[3]), step=2)
        assert again.parents == (ids[1],)
        writer.move(ids[3], into=live)
        assert held_as(live, parts.in_blocks(rank, SIZE, all_states[3]))
        error = ends_of(writer.commit, live, "on top of what was left behind")
        writer.move("main")
        last = writer.commit(parts.by_rows(rank, SIZE, all_states[0]), step=3)
        refused = ends_of(writer.rollback, "no such version")
        return again.id, last.parents, error.kind, refused.kind, writer.version == last.id


def held_as(held, expected):
    return all(
        same_tensor(getattr(held[name], "tensor", held[name]), getattr(part, "tensor", part))
        for name, part in expected.items()
    )


def test_a_rollback_moves_branch_bases_and_live_parts_and_the_next_commit_is_a_child_of_where_it_went(repo):
    first, *others = in_ranks(SIZE, back_and_forth, repo.url)
    assert first[1:] == ((first[0],), "branch_moved", "unknown_ref", True)
    assert all(other == (first[0], (first[0],), "peer_failed", "peer_failed", True) for other in others)
    assert [version.step for version in repo.log()] == [3, 2, 1, 0]
    assert same(repo.checkout("main"), states(1)[0])
    assert same(repo.checkout("step:2"), states(4)[3])
    assert [entry.why for entry in repo.reflog()] == ["commit", "commit", "worse", *["commit"] * 4]


def on_servers(rank, url, storage_options, database, count):
    with (
        deltavc.open(url, db=database, storage_options=storage_options) as repo,
        repo.writer("main", group=dist.group.WORLD, timeout=60.0) as writer,
    ):
        start = 0 if writer.version is None else repo.version(writer.version).step + 1
        for number, state in enumerate(states(count, start)):
            writer.commit(parts.by_rows(rank, dist.get_world_size(), state), step=start + number)
        held = parts.apart(parts.by_columns(rank, dist.get_world_size(), states(start + count)[-1]))
        repo.checkout("step:0", into=held, group=dist.group.WORLD, timeout=60.0)
        return held_as(held, parts.by_columns(rank, dist.get_world_size(), states(1)[0]))


@pytest.mark.servers
def test_ranks_commit_to_s3_and_postgresql_and_go_on_in_other_numbers(s3, postgres):
    url, database = s3.new_bucket(), postgres.new_database()
    with deltavc.init(url, db=database, storage_options=s3.storage_options) as repo:
        assert all(in_ranks(4, on_servers, url, s3.storage_options, database, 2))
        assert all(in_ranks(2, on_servers, url, s3.storage_options, database, 2))
        check(repo, 4)
