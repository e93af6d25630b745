"""Following into a directory: its files are always those of one version, it says which, and nothing else is touched."""

import json
import logging
import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import deltavc
from deltavc import opening
from deltavc.errors import (
    BadCheckpoint,
    CorruptObject,
    DirectoryInUse,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
    UnknownRef,
)
from tests import states
from tests.faults import faulty
from tests.followed import check, files_in, label, weights
from tests.processes import PATIENCE, commit_for_ever, fresh, in_a_fork, state_at
from tests.servers import temporary_directory


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


@pytest.fixture
def place(tmp_path):
    return tmp_path / "serving"


def sharded(folder, step):
    """A checkpoint in two shards with an index; every step changes the second one, every third step the first."""
    folder.mkdir(exist_ok=True)
    parts = {1: {"a": torch.arange(40.0) + step // 3, "b": torch.ones(3)}, 2: {"c": torch.arange(50).bfloat16() + step}}
    for number, tensors in parts.items():
        save_file(tensors, folder / f"model-0000{number}-of-00002.safetensors", metadata={"format": "pt"})
    held_by = {name: f"model-0000{number}-of-00002.safetensors" for number, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": held_by}))
    (folder / "config.json").write_text("{}")
    return folder


def inodes(place):
    return {path.name: path.stat().st_ino for path in place.iterdir() if path.is_file()}


# --- moves ---


def test_every_move_forwards_back_and_across_branches_ends_at_exactly_that_version(repo, place):
    state = {name: tensor for name, tensor in states.of_every_dtype().items() if not name.startswith("complex128")}
    del state["float4_e2m1fn_x2.scalar"]  # which the format has not
    versions = []
    with repo.writer() as writer:
        for step in range(4):
            state = states.stepped(state, step)
            versions.append(writer.commit(state, step=step).id)
        writer.rollback("step:1", into=state)
        for step in range(10, 12):
            state = states.restructured(states.stepped(state, step), step)
            versions.append(writer.commit(state, step=step).id)
    with repo.follow("main", place) as follower:
        for version in (versions[0], versions[3], versions[5], versions[1], versions[4], versions[2]):
            repo.rollback("main", version)
            moved = follower.move()
            assert moved.version == version == follower.version
            check(repo, place, version)
            assert follower.move() is None


def test_a_move_fetches_a_delta_and_says_what_it_did(repo, place):
    state = {"w": states.random_bits("bfloat16", (1000, 100))}
    repo.commit(state, step=1)
    with repo.follow("main", place) as follower:
        first = follower.move()
        assert (first.step, first.before, first.path) == (1, None, str(place))
        assert first.fetched_bytes > 100_000
        assert first.written == ("model.safetensors",)
        assert first.seconds > 0
        state["w"][3, :5] += 1
        repo.commit(state, step=2)
        second = follower.move()
        assert 0 < second.fetched_bytes < 1000
        assert (second.before, second.removed) == (first.version, ())
        json.dumps(second.as_json())


def test_only_files_that_differ_are_written(repo, place, tmp_path):
    versions = [repo.commit(sharded(tmp_path / "source", step), step=step).id for step in range(4)]
    with repo.follow("main", place) as follower:
        repo.rollback("main", versions[0])
        assert len(follower.move().written) == 4
        before = inodes(place)
        repo.rollback("main", versions[1])
        assert follower.move().written == ("model-00002-of-00002.safetensors",)
        assert {name for name, inode in inodes(place).items() if before[name] != inode} == {
            "model-00002-of-00002.safetensors",
            "VERSION",
        }
        check(repo, place, "main")
        repo.rollback("main", versions[3])
        assert follower.move().written == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        check(repo, place, "main")
    repo.checkout("main", path=tmp_path / "out")
    assert files_in(place) == files_in(tmp_path / "out")
    again = repo.commit(tmp_path / "source", "main", step=9)
    with repo.follow("main", place) as follower:
        assert follower.move().written == ()
    assert label(place)["version"] == again.id


def test_files_that_the_next_version_lacks_are_removed_and_others_stay(repo, place):
    files = {"config.json": b"1", "tokenizer/a/vocab.txt": b"2", "tokenizer/b.txt": b"3", "old": b"4"}
    repo.commit({"w": torch.ones(3)}, step=1, files=files)
    with repo.follow("main", place) as follower:
        follower.move()
        (place / "notes.txt").write_text("mine")
        (place / "tokenizer" / "mine.txt").write_text("mine")
        repo.commit({"w": torch.ones(3)}, step=2, files={"config.json": b"5", "old/new": b"6"})
        moved = follower.move()
    assert moved.written == ("config.json", "old/new")
    assert moved.removed == ("old", "tokenizer/a/vocab.txt", "tokenizer/b.txt")
    assert files_in(place).keys() == {
        "model.safetensors",
        "config.json",
        "old/new",
        "notes.txt",
        "tokenizer/mine.txt",
    }
    assert not (place / "tokenizer" / "a").exists()


def test_tied_tensors_are_written_under_each_of_their_names(repo, place):
    shared = torch.randn(5)
    repo.commit({"a": shared, "b": shared, "c": torch.zeros(2)}, step=1)
    with repo.follow("main", place) as follower:
        follower.move()
        shared += 1
        repo.commit({"a": shared, "b": shared, "c": torch.zeros(2)}, step=2)
        follower.move()
    assert states.same(weights(place), {"a": shared, "b": shared, "c": torch.zeros(2)})
    with repo.follow("main", place) as follower:
        assert follower.move() is None


def test_the_base_may_lie_on_the_disk(repo, place, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    state = {"w": states.random_bits("float32", (300, 100))}
    with repo.follow("main", place, keep="disk") as follower:
        for step in range(3):
            repo.commit(state, step=step)
            follower.move()
            check(repo, place, "main")
            state = states.stepped(state, step)
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(ValueError, match="keep='device'"):
        repo.follow("main", place, keep="device")


def test_kept_files_that_are_called_as_ours_are_left_out(repo, place):
    repo.commit({"w": torch.ones(3)}, files={"VERSION": b"1.0", "MOVING": b"", "sub/VERSION": b"2"})
    with repo.follow("main", place) as follower:
        follower.move()
    assert label(place)["files"] == ["model.safetensors", "sub/VERSION"]


def test_a_version_that_cannot_be_written_as_safetensors_leaves_the_directory_as_it_was(repo, place):
    first = repo.commit({"w": torch.ones(3)}).id
    with repo.follow("main", place) as follower:
        follower.move()
        repo.commit({"w": torch.ones(3, dtype=torch.complex128)})
        with pytest.raises(BadCheckpoint, match="has no complex128"):
            follower.move()
        check(repo, place, first)
        repo.rollback("main", first)
        assert follower.move() is None


# --- following ---


def test_what_another_process_commits_is_followed_while_it_commits(tmp_path, place):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=commit_for_ever, args=(url, theirs.send))
    process.start()
    try:
        assert ours.poll(PATIENCE)
        with deltavc.open(url, db="sqlite://") as repo, repo.follow("main", place, every=0.01) as follower:
            steps = []
            for moved in follower:
                steps.append(moved.step)
                check(repo, place, moved.version)
                assert states.same(weights(place), state_at(moved.step))
                if len(steps) == 8:
                    follower.stop()
    finally:
        process.kill()
        process.join()
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("db", ["none", "sqlite://"])
def test_following_needs_no_database_of_the_writers(repo, place, tmp_path, db):
    repo.commit({"w": torch.arange(9)}, step=0)
    repo.branch("side")
    with deltavc.open(tmp_path / "repo", db=db) as other, other.follow("side", place, every=0.01) as follower:
        moves = iter(follower)
        assert next(moves).step == 0
        assert label(place)["branch"] == "side"
        repo.commit({"w": torch.arange(9) + 1}, "side", step=1)
        assert next(moves).step == 1
        check(repo, place, "side")
    with deltavc.open(tmp_path / "repo", db=db) as other, other.follow("side", place) as follower:
        assert follower.move() is None


def test_a_branch_that_moves_back_is_followed_back(repo, place):
    with repo.writer() as writer:
        versions = [writer.commit({"w": torch.arange(9) + step}, step=step).id for step in range(3)]
    with repo.follow("main", place, every=0.01) as follower:
        moves = iter(follower)
        assert next(moves).version == versions[2]
        repo.rollback("main", versions[0])
        assert next(moves).version == versions[0]
        check(repo, place, versions[0])
        repo.delete_branch("main")
        with pytest.raises(UnknownRef):
            next(moves)
        assert states.same(weights(place), repo.checkout(versions[0]))


def test_stopping_from_another_thread_ends_the_following(repo, place):
    repo.commit({"w": torch.ones(3)})
    with repo.follow("main", place, every=600) as follower:
        told = []
        thread = threading.Thread(target=lambda: told.extend(follower))
        thread.start()
        while not told:
            pass
        follower.stop()
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(ValueError, match="closed"):
        follower.move()


# --- starting ---


def packs_read(store):
    return [key for name, key in store.calls if name == "get" and key.startswith("packs/")]


def test_a_start_reads_the_weights_from_the_directory_and_none_from_the_store(repo, place, tmp_path, monkeypatch):
    state = {"w": states.random_bits("bfloat16", (100, 100)), "b": torch.zeros(4)}
    repo.commit(state, step=1)
    with repo.follow("main", place) as follower:
        follower.move()
    store = faulty(str(tmp_path / "repo"))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.open(tmp_path / "repo") as other, other.follow("main", place) as follower:
        assert follower.version == repo.resolve("main")
        assert follower.move() is None
        assert packs_read(store) == []
        state["b"] += 1
        repo.commit(state, step=2, snapshot=False)
        follower.move()
        assert len(packs_read(store)) == 1
    check(repo, place, "main")


def spoil_a_bit(path):
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def write_another(path):
    save_file({"other": torch.ones(2)}, path)


@pytest.mark.parametrize(
    "spoil", [spoil_a_bit, cut_short, write_another, Path.unlink], ids=lambda spoil: spoil.__name__
)
@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "config.json"])
def test_what_version_says_is_not_believed(repo, place, tmp_path, caplog, spoil, name):
    repo.commit(sharded(tmp_path / "source", 0), step=0)
    with repo.follow("main", place) as follower:
        follower.move()
    spoil(place / name)
    with repo.follow("main", place) as follower:
        moved = follower.move()
        assert moved.written == (tuple(label(place)["files"]) if "model" in name else (name,))
        assert moved.before == moved.version
        assert follower.move() is None
    check(repo, place, "main")
    assert "is not what its VERSION says" in caplog.text
    assert str(place) in caplog.text


def test_a_tied_copy_that_was_spoilt_is_noticed(repo, place, caplog):
    shared = torch.arange(5.0)
    repo.commit({"a": shared, "b": shared})
    with repo.follow("main", place) as follower:
        follower.move()
    spoil_a_bit(place / "model.safetensors")
    with repo.follow("main", place) as follower:
        assert follower.move().written == ("model.safetensors",)
    assert "'b'" in caplog.text


def test_a_file_that_somebody_touches_meanwhile_is_written_anew(repo, place, tmp_path, caplog):
    repo.commit(sharded(tmp_path / "source", 0), step=0)
    with repo.follow("main", place) as follower:
        follower.move()
        spoil_a_bit(place / "model-00001-of-00002.safetensors")
        (place / "config.json").unlink()
        repo.commit(sharded(tmp_path / "source", 1), step=1)
        assert follower.move().written == (
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "config.json",
        )
    check(repo, place, "main")
    assert "was touched by somebody else" in caplog.text


def test_a_version_that_the_repository_does_not_know_is_written_over(repo, place, tmp_path, caplog):
    repo.commit({"w": torch.ones(3)})
    with repo.follow("main", place) as follower:
        follower.move()
    told = label(place)
    text = (place / "VERSION").read_text().replace(told["version"], "0" * 64)
    (place / "VERSION").write_text(text)
    with pytest.raises(BadCheckpoint, match="checksum"):
        repo.follow("main", place)


# --- what is not ours ---


def test_a_directory_with_files_of_others_is_refused_and_left_alone(repo, place):
    repo.commit({"w": torch.ones(3)})
    place.mkdir()
    (place / "model.safetensors").write_bytes(b"mine")
    for text in (None, "1.0\n", "{}", '{"version": 1}'):
        if text is not None:
            (place / "VERSION").write_text(text)
        with pytest.raises(BadCheckpoint, match="VERSION that deltavc wrote"):
            repo.follow("main", place)
    assert (place / "model.safetensors").read_bytes() == b"mine"
    (place / "VERSION").unlink()
    (place / "MOVING").write_text("{}")
    with pytest.raises(BadCheckpoint, match="MOVING that deltavc wrote"):
        repo.follow("main", place)
    file = place / "model.safetensors"
    with pytest.raises(BadCheckpoint, match="is not a directory"):
        repo.follow("main", file)


def test_a_directory_of_another_repository_is_refused(repo, place, tmp_path):
    repo.commit({"w": torch.ones(3)})
    with repo.follow("main", place) as follower:
        follower.move()
    with deltavc.init(tmp_path / "other") as other:
        other.commit({"w": torch.zeros(3)})
        with pytest.raises(BadCheckpoint, match=f"of another repository, {repo.id}"):
            other.follow("main", place)
    check(repo, place, "main")


@pytest.mark.parametrize("taken", ["new.json", "folder/new.json", "folder", "link/new.json"])
def test_a_file_of_others_is_never_replaced(repo, place, taken, tmp_path):
    name = "folder/new.json" if taken == "folder" else taken
    first = repo.commit({"w": torch.ones(3)}).id
    repo.commit({"w": torch.zeros(3)}, files={name: b"theirs"})
    (tmp_path / "elsewhere").mkdir()
    with repo.follow(first, place) as follower:
        follower.move()
    if taken.startswith("link"):
        (place / "link").symlink_to(tmp_path / "elsewhere")
    else:
        (place / taken).parent.mkdir(exist_ok=True)
        (place / taken).write_text("mine")
    with repo.follow("main", place) as follower, pytest.raises(BadCheckpoint, match=r"move it elsewhere|is a link"):
        follower.move()
    assert label(place)["version"] == first
    assert states.same(weights(place), repo.checkout(first))
    assert taken.startswith("link") or (place / taken).read_text() == "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_two_cannot_follow_into_one_directory(repo, place):
    repo.commit({"w": torch.ones(3)})
    with repo.follow("main", place), pytest.raises(DirectoryInUse, match=f"by process {os.getpid()} on "):
        repo.follow("main", place)
    repo.follow("main", place).close()


# --- a store that fails ---


@pytest.fixture
def shaky(repo, tmp_path, monkeypatch):
    """The repository through a store that can fail."""
    for step in range(3):
        state = {"w": states.random_bits("bfloat16", (50, 50)), "b": torch.arange(9) + step}
        repo.commit(state, step=step, files={"config.json": b"%d" % step})
    store = faulty(str(tmp_path / "repo"))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.open(tmp_path / "repo", db=f"sqlite:///{tmp_path}/other.db") as other:
        yield other, store


def test_a_request_that_fails_costs_a_move_and_the_base_comes_from_the_directory(repo, shaky, place):
    other, store = shaky
    versions = [repo.resolve(f"step:{step}") for step in range(3)]
    with other.follow("main", place) as follower:
        follower.move()
        for nth in range(1, 100):
            target = versions[nth % 2]
            before = label(place)["version"]
            repo.rollback("main", target)
            with store.failing(nth, "before") as fired:
                try:
                    follower.move()
                except StoreUnavailable:
                    check(repo, place, before)
                    store.calls.clear()
                    moved = follower.move()
                    assert moved is None or moved.fetched_bytes < repo.edges(versions[0])[0].nbytes
            check(repo, place, target)
            if not fired:
                break
    assert nth > 4


def test_an_outage_is_waited_out(repo, shaky, place, caplog):
    caplog.set_level(logging.WARNING)
    other, store = shaky
    with other.follow("main", place, every=0.01) as follower:
        moves = iter(follower)
        next(moves)
        repo.rollback("main", "step:0")
        left = ["before"] * 4

        def down_for_a_while(name, args):
            return left.pop() if left and args and args[0].startswith(("packs/", "files/")) else None

        store._plan = down_for_a_while
        assert next(moves).step == 0
        assert not left
        store._plan = None
        follower.stop()
        assert list(moves) == []
    check(repo, place, "step:0")
    assert [record.name for record in caplog.records].count("deltavc.watch") == 2


def test_a_damaged_object_ends_following_with_the_directory_as_it_was(repo, place, tmp_path):
    repo.commit({"w": states.random_bits("bfloat16", (50, 50))}, step=0)
    with repo.follow("main", place, every=0.01) as follower:
        moves = iter(follower)
        first = next(moves)
        before = set((tmp_path / "repo" / "packs").rglob("*.pack"))
        repo.commit({"w": states.random_bits("bfloat16", (50, 50), 1)}, step=1)
        (pack,) = set((tmp_path / "repo" / "packs").rglob("*.pack")) - before
        spoil_a_bit(pack)
        with pytest.raises(CorruptObject):
            next(moves)
        check(repo, place, first.version)


@pytest.mark.servers
def test_a_bucket_and_a_database_server_are_followed(s3, postgres, place, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = {"url": s3.new_bucket(), "db": postgres.new_database(), "storage_options": s3.storage_options}
    with deltavc.init(**url) as repo, deltavc.open(**url) as other, other.follow("main", place, every=0.05) as follower:
        moves = iter(follower)
        for step in range(3):
            repo.commit({"w": torch.arange(9) + step}, step=step, files={"config.json": b"%d" % step})
            assert next(moves).step == step
            check(repo, place, "main")
        repo.rollback("main", "step:0")
        assert next(moves).step == 0
        check(repo, place, "step:0")


# --- a disk that fails ---


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_directory_that_may_not_be_written_to_is_named(tmp_path):
    with temporary_directory("deltavc-follow-") as folder:
        with deltavc.init(tmp_path / "repo") as repo:
            repo.commit({"w": torch.ones(3)})
            version = repo.resolve("main")
            with repo.follow("main", folder / "serving") as follower:
                follower.move()
        for name in (folder, folder / "serving"):
            name.chmod(0o755)

        def as_somebody():
            os.setuid(12345)
            for place in (folder / "serving", folder / "new"):
                with deltavc.init(f"memory://{place}") as other, pytest.raises(StoreDenied) as denied:
                    other.follow("main", place)
                assert str(place) in str(denied.value)
                assert "directory" in denied.value.hint

        assert os.waitpid(in_a_fork(as_somebody), 0)[1] == 0
        assert label(folder / "serving")["version"] == version


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_named_and_leaves_the_directory_as_it_was(repo, small_disk):
    place = small_disk / "serving"
    repo.commit({"w": torch.zeros(500_000, dtype=torch.bfloat16)}, step=0)
    with repo.follow("main", place) as follower:
        first = follower.move()
        repo.commit({"w": torch.ones(1_500_000, dtype=torch.bfloat16)}, step=1)
        with pytest.raises(StoreFull) as full:
            follower.move()
        assert str(place) in str(full.value)
        assert "Free some room" in full.value.hint
        check(repo, place, first.version)
        repo.commit({"w": torch.ones(600_000, dtype=torch.bfloat16)}, step=2)
        assert follower.move().step == 2
        check(repo, place, "main")
