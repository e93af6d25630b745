"""A replica moves to any version there is, in place, and is bit for bit that version after every move."""

import contextlib
import gc
import random
import threading
import time
import warnings

import pytest
import torch

import deltavc
from deltavc.errors import (
    ForeignWrite,
    LayoutMismatch,
    NothingStaged,
    ReplicaClosed,
    ReplicaUnusable,
    StageCancelled,
    StagingTooSmall,
    UnknownRef,
    WrongWeights,
)
from tests.replica.samples import line_of
from tests.states import copied, of_every_dtype, random_bits, same, stepped

CODECS = [None, "xor-zstd", "sparse", "planes", "raw", "xor-lz4"]


@pytest.fixture
def line(tmp_path):
    """A repository with a line of five versions, and their states by id."""
    with line_of(tmp_path / "repo") as made:
        yield made


def branching(repo, seed, num_versions=24):
    """Versions on many branches, by codecs and operations of all kinds, and their states by id."""
    pick = random.Random(seed)
    states = {}
    state = of_every_dtype(seed)
    state["tied"] = state["float32.129"]
    states[repo.commit(state).id] = copied(state)
    for number in range(num_versions):
        base = pick.choice(list(states))
        branch = f"b{number}"
        repo.branch(branch, base)
        state = stepped(states[base], seed + number + 1, pick.choice((0.001, 0.02, 0.2, 0.9)))
        version = repo.commit(state, branch, codec=pick.choice(CODECS), snapshot=pick.random() < 0.1)
        states[version.id] = copied(state)
    return states


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_walk_over_a_branching_history_is_exact_after_every_move(seed, tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        states = branching(repo, seed)
        pick = random.Random(seed)
        start = pick.choice(list(states))
        live = copied(states[start])
        places = {name: tensor.data_ptr() for name, tensor in live.items()}
        with repo.replica(live, at=start) as replica:
            for _ in range(100):
                target = pick.choice(list(states))
                applied = replica.move(target)
                assert applied.version == replica.version == target
                assert same(live, states[target])
            replica.verify()
        assert places == {name: tensor.data_ptr() for name, tensor in live.items()}


@pytest.mark.parametrize("seed", [3, 4])
def test_any_calls_in_any_order_with_little_memory_end_at_a_version_exactly(seed, tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        states = branching(repo, seed, 12)
        pick = random.Random(seed)
        start = pick.choice(list(states))
        live = {name: tensor.clone() for name, tensor in states[start].items()}  # tied ones lie apart
        with repo.replica(live, at=start, staging_bytes=30_000, memory=4000) as replica:
            for _ in range(60):
                target = pick.choice(list(states))
                with contextlib.suppress(NothingStaged, StageCancelled, StagingTooSmall):
                    match pick.choice(("stage", "stage and wait", "cancel", "apply", "apply", "move", "long")):
                        case "stage":
                            replica.stage(target)
                        case "stage and wait":
                            replica.stage(target).wait()
                        case "cancel":
                            replica.stage(target).cancel()
                        case "apply":
                            replica.apply()
                        case "move":
                            replica.move(target)
                        case "long":
                            replica.move(target, allow_long_pause=True)
                assert same(live, states[replica.version])
            replica.verify()


def test_staging_goes_on_from_what_is_staged(line):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    with repo.replica(live, at=first) as replica:
        for version in versions:
            nbytes = replica.stage(version).wait()
            assert nbytes <= repo.version(version).stored_bytes  # one step, not all from the start
            assert same(live, versions[first])
        replica.stage("main~2").wait()
        replica.stage("main").wait()
        assert replica.state == "staged"
        replica.apply()
        assert same(live, versions[last])
        assert [span.version for span in replica.history] == [first, last]


def test_at_none_finds_the_version(line):
    repo, versions = line
    for version, state in versions.items():
        with repo.replica(copied(state)) as replica:
            assert replica.version == version
    with pytest.raises(UnknownRef, match="no version"):
        repo.replica(stepped(versions[version], 99))


def test_live_tensors_that_are_another_version_are_refused(line):
    repo, versions = line
    with pytest.raises(WrongWeights) as caught:
        repo.replica(copied(next(iter(versions.values()))), at="main")
    assert set(caught.value.tensors) <= versions[caught.value.version].keys()
    assert caught.value.tensors


def test_an_apply_without_a_stage_and_a_second_one_are_refused(line):
    repo, versions = line
    live = copied(versions[repo.resolve("main")])
    with repo.replica(live, at="main") as replica:
        with pytest.raises(NothingStaged):
            replica.apply()
        replica.move("main~1")
        with pytest.raises(NothingStaged):
            replica.apply()
        assert same(live, versions[replica.version])


def test_a_foreign_write_to_a_lane_that_changes_is_noticed_by_apply_and_nothing_is_written(line):
    repo, versions = line
    start, target = repo.resolve("main~1"), repo.resolve("main")
    live = copied(versions[start])
    with repo.replica(live, at=start) as replica:
        replica.stage(target).wait()
        changed = (
            versions[start]["weight"].view(torch.int16) != versions[target]["weight"].view(torch.int16)
        ).nonzero()
        live["weight"][tuple(changed[-1])] = 1.5
        before = copied(live)
        with pytest.raises(ForeignWrite) as caught:
            replica.apply()
        assert caught.value.tensors == ("weight",)
        assert same(live, before)
        assert replica.state == "unusable"
        with pytest.raises(ReplicaUnusable):
            replica.stage("main")
        with pytest.raises(ReplicaUnusable), replica.reading():
            pass
        live["weight"].copy_(versions[start]["weight"])
        replica.verify()
        replica.move(target)
        assert same(live, versions[target])


def test_any_foreign_write_is_noticed_by_verify_and_a_long_move_makes_good(line):
    repo, versions = line
    live = copied(versions[repo.resolve("main")])
    with repo.replica(live, at="main") as replica:
        live["embed"].view(torch.int16)[17, 5] ^= 1
        with pytest.raises(WrongWeights) as caught:
            replica.verify()
        assert caught.value.tensors == ("embed",)
        with pytest.raises(ReplicaUnusable):
            replica.move("main")
        replica.move("main~2", allow_long_pause=True)
        assert same(live, versions[repo.resolve("main~2")])
        assert replica.state == "serving"


def test_a_change_larger_than_the_arena_is_refused_with_a_size_that_is_enough(line):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    with repo.replica(live, at=first, staging_bytes=2000) as replica:
        with pytest.raises(StagingTooSmall) as caught:
            replica.move(last)
        assert same(live, versions[first])
        assert replica.state == "serving"
        replica.move(last, allow_long_pause=True)
        assert same(live, versions[last])
    live = copied(versions[first])
    with repo.replica(live, at=first, staging_bytes=caught.value.needs) as replica:
        replica.move(last)
        assert same(live, versions[last])


@pytest.mark.parametrize("codec", [None, "xor-zstd"])
@pytest.mark.parametrize("density", [0.005, 0.4])
def test_the_size_that_is_said_to_be_enough_is_enough(tmp_path, codec, density):
    """Of tied tensors that lie apart, transposed ones, and where staging goes on from what is staged."""
    tied = random_bits("bfloat16", (200, 300))
    state = {"head": tied, "embed": tied, "wide": random_bits("float32", (90, 70), 1), "zero": torch.zeros(9000)}
    with line_of(tmp_path / "repo", 3, state, density, codec=codec) as (repo, versions):
        first, *way = versions

        def stage(nbytes, *targets):
            live = {name: tensor.clone() for name, tensor in versions[first].items()}
            live["wide"] = live["wide"].t().contiguous().t()
            with repo.replica(live, at=first, staging_bytes=nbytes) as replica:
                for target in targets:
                    replica.stage(target).wait()

        for has in (0, 20_000, 50_000):
            try:
                stage(has, *way)
            except StagingTooSmall as error:
                stage(error.needs, *way)
                stage(error.needs, way[-1])


def test_a_codec_that_writes_every_lane_needs_no_more_staging_memory_than_what_changed(tmp_path):
    state = {"wide": random_bits("bfloat16", (400, 500))}
    with line_of(tmp_path / "repo", 2, state, 0.01, codec="xor-zstd") as (repo, versions):
        first, last = versions
        live = copied(versions[first])
        with repo.replica(live, at=first, staging_bytes=400 * 500 * 2 // 8) as replica:
            assert replica.move(last).changed_lanes < 400 * 500 * 0.02
            assert same(live, versions[last])
            replica.verify()


def test_a_cancelled_stage_leaves_nothing_staged(line):
    repo, versions = line
    live = copied(versions[repo.resolve("main")])
    with repo.replica(live, at="main") as replica:
        with replica.reading():
            replica.stage("main~1").wait()
            waiting = threading.Thread(target=replica.apply)  # keeps the replica's thread until we stop reading
            waiting.start()
            while replica.state == "staged":
                time.sleep(0.001)
            staged = replica.stage("main~3")
            staged.cancel()
        waiting.join()
        with pytest.raises(StageCancelled):
            staged.wait()
        assert replica.state == "serving"
        assert same(live, versions[repo.resolve("main~1")])
        replica.move("main~3")
        assert same(live, versions[repo.resolve("main~3")])


def test_of_several_threads_one_moves_after_another(line):
    repo, versions = line
    live = copied(versions[repo.resolve("main")])
    made = []
    with repo.replica(live, at="main") as replica:

        def move(target):
            for _ in range(5):
                made.append((replica.move(target).version, target))

        threads = [threading.Thread(target=move, args=(target,)) for target in versions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 5 * len(versions)
        assert all(version == target for version, target in made)
        assert same(live, versions[replica.version])


def test_a_version_with_other_tensors_is_refused_by_name(line):
    repo, versions = line
    state = copied(versions[repo.resolve("main")]) | {"more": torch.ones(3)}
    repo.branch("other")
    repo.commit(state, "other")
    with repo.replica(copied(versions[repo.resolve("main")]), at="main") as replica:
        with pytest.raises(LayoutMismatch, match="more"):
            replica.move("other")
        assert replica.state == "serving"


def storages():
    """Bytes of the memory of all tensors there are."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other objects, which do not like to be asked
        tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.layout is torch.strided]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def test_staging_that_failed_holds_on_to_nothing_that_it_fetched(tmp_path):
    state = {f"w.{number}": random_bits("bfloat16", (300, 300), number) for number in range(8)}
    with line_of(tmp_path / "repo", 2, state, 0.2) as (repo, versions):
        first, last = versions
        with repo.replica(copied(versions[first]), at=first, staging_bytes=1000) as replica:
            before = storages()
            staged = replica.stage(last)
            with pytest.raises(StagingTooSmall):
                staged.wait()
            assert storages() <= before + 1000


def test_a_closed_replica_lets_go_of_the_live_tensors(line):
    repo, versions = line
    start = versions[repo.resolve("main")]
    before = storages()
    live = copied(start)
    replica = repo.replica(live, at="main")
    replica.move("main~1")
    replica.close()
    del live
    assert storages() <= before + 1000
    assert replica.version == repo.resolve("main~1")


def test_a_closed_replica_takes_no_calls(line):
    repo, versions = line
    replica = repo.replica(copied(versions[repo.resolve("main")]), at="main")
    replica.close()
    replica.close()
    for call in (replica.verify, lambda: replica.stage("main"), lambda: replica.move("main")):
        with pytest.raises(ReplicaClosed):
            call()
