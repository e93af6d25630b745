"""The directory in which versions are tried: always exactly the version, by deltas, whatever was done to its files."""

import contextlib
import itertools
import random
import time

import pytest
import torch

import deltavc
from deltavc import opening
from deltavc.errors import BadCheckpoint, DirectoryInUse, StoreUnavailable
from deltavc.weights.followed import MOVING, FollowedDirectory
from tests import states
from tests.faults import faulty
from tests.followed import check
from tests.processes import fresh


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    """Versions of every dtype, one tied, and a file that changes every other step; 6 has one more, 7 is all new."""
    state = {name: tensor for name, tensor in states.of_every_dtype().items() if not name.startswith("complex128")}
    del state["float4_e2m1fn_x2.scalar"]  # which the format has not
    state["tied"] = state["bfloat16.3x5x7"]
    with deltavc.init(tmp_path_factory.mktemp("bench") / "repo") as repo, repo.writer("main") as writer:
        for step in range(8):
            state = states.stepped(state, step, 0.01 if step < 7 else 1.0)
            if step == 6:
                state["new"] = torch.ones(3)
            files = {"config.json": b"%d" % (step // 2)} | ({"odd/file": b"odd"} if step % 2 else {})
            writer.commit(state, step=step, files=files)
        yield repo


@pytest.fixture
def place(tmp_path):
    return tmp_path / "weights"


@pytest.fixture
def bench(repo, place):
    bench = repo.bisector().workbench(place)
    yield bench
    bench.close()


def test_every_move_ends_at_exactly_that_version(repo, place, bench):
    whole = []
    for step in (0, 5, 5, 2, 6, 7, 3, 1):
        moved = bench.move(repo.resolve(f"step:{step}"))
        check(repo, place, f"step:{step}")
        whole.append(moved.whole)
    assert whole == [True, False, False, False, True, False, True, False]  # from nothing, and from layout to layout


def test_a_move_rewrites_the_weights_where_they_are_and_fetches_a_delta(repo, place, bench):
    bench.move(repo.resolve("step:2"))
    file = place / "model.safetensors"
    before, inode = file.read_bytes(), file.stat().st_ino
    moved = bench.move(repo.resolve("step:3"))
    assert file.stat().st_ino == inode
    differing = sum(one != other for one, other in zip(before, file.read_bytes(), strict=True))
    assert 0 < differing < 0.05 * len(before)
    assert 0 < moved.fetched_bytes == sum(edge.nbytes for edge in repo.edges("step:3") if edge.base)


def test_changes_that_do_not_fit_into_the_staging_memory_are_written_where_they_are_too(tmp_path, place):
    state = {"w": states.random_bits("bfloat16", (2000, 2000)), "b": torch.ones(3)}
    with deltavc.init(tmp_path / "repo") as repo, repo.writer("main") as writer:
        versions = []
        for step in range(3):
            state["w"] = states.random_bits("bfloat16", (2000, 2000), step)
            versions.append(writer.commit(state, step=step, snapshot=step == 0).id)
        bench = repo.bisector().workbench(place)
        for step in (0, 2, 1):
            assert bench.move(versions[step]).whole == (step == 0)
            check(repo, place, versions[step])
        spoiled = bytearray((place / "model.safetensors").read_bytes())
        spoiled[-1] ^= 1
        (place / "model.safetensors").write_bytes(spoiled)
        bench.move(versions[2])
        check(repo, place, versions[2])
        bench.close()


def test_a_directory_is_gone_on_from(repo, place, bench, caplog):
    bench.move(repo.resolve("step:2"))
    bench.close()
    inode = (place / "model.safetensors").stat().st_ino
    again = repo.bisector().workbench(place)
    assert not again.move(repo.resolve("step:3")).whole
    again.close()
    assert (place / "model.safetensors").stat().st_ino == inode
    with repo.follow("step:1", place) as follower:  # and by a follower
        follower.move()
    check(repo, place, "step:1")
    assert not caplog.records


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("deed", ["flip", "cut", "remove"])
def test_what_somebody_did_to_the_files_is_put_right(repo, place, bench, name, deed, reopened, caplog):
    bench.move(repo.resolve("step:2"))
    if reopened:
        bench.close()
    path = place / name
    body = path.read_bytes()
    if deed == "remove":
        path.unlink()
    else:
        path.write_bytes(body[:-1] + (bytes([body[-1] ^ 1]) if deed == "flip" else b""))
    other = repo.bisector().workbench(place) if reopened else bench
    other.move(repo.resolve("step:3"))
    check(repo, place, "step:3")
    other.close()
    assert any("somebody else" in each.message or "VERSION" in each.message for each in caplog.records) or (
        name == "config.json"
    )


def test_a_move_that_was_cut_off_is_not_believed(repo, place, bench, caplog):
    """Killed in the middle: half of the weights are written, and MOVING is there."""
    bench.move(repo.resolve("step:2"))
    bench.close()
    path = place / "model.safetensors"
    directory = FollowedDirectory(place)
    directory.stage(())

    def half():
        body = bytearray(path.read_bytes())
        body[-40:] = bytes(40)
        path.write_bytes(body)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        directory.publish(directory.label, half)
    directory.close()
    assert (place / MOVING).exists()
    again = repo.bisector().workbench(place)
    again.move(repo.resolve("step:3"))
    again.close()
    check(repo, place, "step:3")
    assert "is written anew" in caplog.text


def move_for_ever(url, place):
    with deltavc.open(url) as repo:
        bench = repo.bisector().workbench(place)
        for step in itertools.cycle((1, 3, 2, 6, 7, 5)):
            bench.move(repo.resolve(f"step:{step}"))


@pytest.mark.long
def test_whenever_it_is_killed_the_next_move_ends_at_exactly_the_version(repo, place):
    chance = random.Random(5)
    for step in itertools.islice(itertools.cycle((0, 2, 4, 7)), 12):
        process = fresh.Process(target=move_for_ever, args=(repo.url, place))
        process.start()
        time.sleep(1 + chance.random())
        process.kill()
        process.join()
        bench = repo.bisector().workbench(place)
        bench.move(repo.resolve(f"step:{step}"))
        bench.close()
        check(repo, place, f"step:{step}")


def test_a_move_that_fails_leaves_the_directory_as_it_was_and_can_be_made_again(repo, place, monkeypatch):
    store = faulty(repo.url)
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.open(repo.url) as shaky:
        bench = shaky.bisector().workbench(place)
        for nth in itertools.count(1):
            bench.move(repo.resolve("step:1"))
            with store.failing(nth, "before") as fired, contextlib.suppress(StoreUnavailable):
                bench.move(repo.resolve("step:2"))
            if not fired:
                break
            check(repo, place, "step:1")
        bench.close()
    check(repo, place, "step:2")
    assert nth > 2


def test_foreign_directories_are_refused(repo, place, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(BadCheckpoint, match="not empty"):
        repo.bisector().workbench(tmp_path / "mine")
    with deltavc.init(tmp_path / "other") as other:
        other.commit({"w": torch.ones(3)})
        bench = other.bisector().workbench(place)
        bench.move(other.resolve("main"))
        bench.close()
    with pytest.raises(BadCheckpoint, match="another repository"):
        repo.bisector().workbench(place)


def test_two_cannot_move_one_directory(repo, place, bench):
    with pytest.raises(DirectoryInUse):
        repo.bisector().workbench(place)
