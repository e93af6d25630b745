"""Commits in the background: what is read is what is committed, whatever the caller does next."""

import secrets
import subprocess
import sys
import threading
import time

import pytest
import torch

import deltavc
from deltavc.errors import (
    BadMetadata,
    BadState,
    CommitAbandoned,
    EncodeMismatch,
    StoreUnavailable,
    UnsupportedDtype,
    WriterBusy,
    WriterClosed,
)
from deltavc.store.objects import open_store
from tests.faults import WRITES, FaultyStore
from tests.test_faults import committed_steps, opened, same, state_at


@pytest.fixture
def repo():
    url = f"memory://async-{secrets.token_hex(4)}"
    deltavc.init(url).close()
    with opened(FaultyStore(open_store(url))) as repo:
        repo.store = repo._store
        repo.again = lambda: deltavc.open(url)
        yield repo


class Held:
    """While entered, nothing reaches the store; then everything does."""

    def __init__(self, store):
        self._store = store
        self._gate = threading.Event()

    def __enter__(self):
        self._store._plan = lambda name, args: self._gate.wait(60) and None if name in WRITES else None
        return self

    def open(self):
        self._gate.set()

    def __exit__(self, *error):
        self._gate.set()
        self._store._plan = None


@pytest.mark.parametrize("keep", ["device", "host", "disk"])
def test_changing_the_state_after_commit_async_returned_changes_nothing(repo, keep):
    state = state_at(0)
    with repo.writer("main", keep=keep, max_in_flight=3) as writer, Held(repo.store) as held:
        futures = []
        for step in range(3):
            state = {name: tensor.clone() for name, tensor in state_at(step).items()}
            futures.append(writer.commit_async(state, step=step))
            for tensor in state.values():
                tensor.zero_()
        assert not any(future.done() for future in futures)
        held.open()
        assert [future.result().step for future in futures] == [0, 1, 2]
    assert committed_steps(repo) == [0, 1, 2]


def test_files_may_change_after_commit_async_returned(repo, tmp_path):
    path = tmp_path / "optimizer.bin"
    path.write_bytes(b"before")
    content = bytearray(b"rng before")
    with repo.writer("main") as writer, Held(repo.store) as held:
        future = writer.commit_async(state_at(0), step=0, files={"optimizer.bin": path, "rng": content})
        path.write_bytes(b"after!")
        content[:] = b"rng after!"
        held.open()
        version = future.result()
    assert repo.read_file(version.id, "optimizer.bin") == b"before"
    assert repo.read_file(version.id, "rng") == b"rng before"


def test_meta_may_change_after_commit_async_returned(repo):
    meta = {"optimizer": {"lr": 1e-6, "betas": (0.9, 0.95)}}
    with repo.writer("main") as writer, Held(repo.store) as held:
        future = writer.commit_async(state_at(0), step=0, meta=meta)
        meta["optimizer"]["lr"] = object()
        held.open()
        future.result()
    expected = {"optimizer": {"lr": 1e-6, "betas": [0.9, 0.95]}}
    with repo.again() as fresh:
        assert future.result().meta == repo.version().meta == fresh.version().meta == expected


def test_a_snapshot_uses_frames_of_packs_that_are_still_on_their_way(repo, monkeypatch):
    put = repo.store._store.put
    monkeypatch.setattr(repo.store._store, "put", lambda *args: time.sleep(0.2) or put(*args))
    state = {"changes": torch.zeros(500), "stays": torch.randn(500)}
    with repo.writer("main", max_in_flight=4) as writer:
        futures = [writer.commit_async(state, step=0)]
        for step in (1, 2):
            state = state | {"changes": torch.full((500,), float(step))}
            futures.append(writer.commit_async(state, step=step, snapshot=True))
        assert [future.result().step for future in futures] == [0, 1, 2]
    with repo.again() as fresh:
        assert same(fresh.checkout(), state)


def test_a_snapshot_on_frames_of_a_commit_that_failed_is_abandoned_with_it(repo):
    state = {"changes": torch.zeros(500), "stays": torch.randn(500)}
    gate = threading.Event()
    with repo.writer("main", max_in_flight=4) as writer:
        with repo.store.down(when=lambda key: key.startswith("packs/") and gate.wait(60)):
            future = writer.commit_async(state, step=0)
            threading.Timer(0.2, gate.set).start()
            with pytest.raises(CommitAbandoned):
                writer.commit_async(state | {"changes": torch.ones(500)}, step=1, snapshot=True)
        assert isinstance(future.exception(), StoreUnavailable)
        writer.commit(state, step=2)
    with repo.again() as fresh:
        assert [version.step for version in fresh.log()] == [2]
        assert same(fresh.checkout(), state)


def test_a_busy_writer_refuses_when_asked_to(repo):
    with repo.writer("main", on_busy="error") as writer, Held(repo.store) as held:
        first = writer.commit_async(state_at(0), step=0)
        with pytest.raises(WriterBusy):
            writer.commit_async(state_at(1), step=1)
        held.open()
        first.result()
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 2]


def test_a_busy_writer_waits_by_default(repo):
    with repo.writer("main") as writer:
        futures = [writer.commit_async(state_at(step), step=step) for step in range(5)]
        assert [future.result().step for future in futures] == list(range(5))
    assert committed_steps(repo) == list(range(5))


def test_a_busy_writer_coalesces_into_the_newest_state(repo):
    with repo.writer("main", on_busy="coalesce") as writer:
        writer.commit(state_at(0), step=0)
        with Held(repo.store) as held:
            futures = [writer.commit_async(state_at(step), step=step) for step in range(1, 6)]
            held.open()
            landed = [future.result().step for future in futures]
        writer.commit(state_at(6), step=6)
    assert landed[-1] == 5
    assert len(set(landed)) <= 2  # the one whose landing had begun, and the one that took the place of the others
    assert all(step <= at for step, at in enumerate(landed, 1))
    assert committed_steps(repo) == sorted({0, *landed, 6})


def test_a_state_that_cannot_be_read_takes_no_place(repo):
    with repo.writer("main", on_busy="coalesce") as writer, Held(repo.store) as held:
        waiting = [writer.commit_async(state_at(step), step=step) for step in range(2)]
        with pytest.raises(BadState):
            writer.commit_async({"w": "no tensor"}, step=2)
        held.open()
        assert [future.result(60).step for future in waiting] == [0, 1]
    assert committed_steps(repo) == [0, 1]


def test_a_commit_that_fails_after_it_took_anothers_place_abandons_that_one(repo, tmp_path):
    with repo.writer("main", on_busy="coalesce") as writer, Held(repo.store) as held:
        waiting = [writer.commit_async(state_at(step), step=step) for step in range(2)]
        with pytest.raises(BadMetadata):
            writer.commit_async(state_at(2), step=2, files={"gone": tmp_path / "gone"})
        held.open()
        assert waiting[0].result(60).step == 0
        with pytest.raises(CommitAbandoned):
            waiting[1].result(60)
        writer.commit(state_at(3), step=3)
    assert committed_steps(repo) == [0, 3]


def test_a_state_that_cannot_be_read_leaves_the_writer_where_it_was(repo):
    with repo.writer("main") as writer:
        version = writer.commit(state_at(0), step=0)
        with pytest.raises(UnsupportedDtype):
            writer.commit({"w": torch.zeros(3, dtype=torch.uint8).view(torch.bits8)}, step=1)
        assert writer.version == version.id
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 2]


def test_a_codec_that_does_not_give_back_what_it_was_given_is_noticed_before_upload(repo, monkeypatch):
    from deltavc.delta import codecs

    honest = codecs.codec("raw")

    class Flips:
        name, kind, operation = "raw", "dense", "add"

        def encode(self, change, num_lanes):
            payload = bytearray(honest.encode(change, num_lanes))
            payload[0] ^= 1
            return bytes(payload)

        decode = staticmethod(honest.decode)

    with repo.writer("main") as writer:
        writer.commit(state_at(0), step=0)
        with monkeypatch.context() as patch:
            patch.setitem(codecs._codecs(), "raw", Flips())
            with pytest.raises(EncodeMismatch):
                writer.commit(state_at(1), step=1, codec="raw")
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 2]


def test_a_closed_writer_says_so(repo):
    writer = repo.writer("main")
    future = writer.commit_async(state_at(0), step=0)
    writer.close()
    writer.close()
    assert future.result().step == 0
    with pytest.raises(WriterClosed):
        writer.commit(state_at(1), step=1)


def test_an_interrupt_gives_up_what_has_not_landed(repo):
    with pytest.raises(KeyboardInterrupt), repo.writer("main") as writer, Held(repo.store) as held:  # noqa: PT012
        writer.commit_async(state_at(0), step=0)
        threading.Timer(0.2, held.open).start()
        raise KeyboardInterrupt
    assert "main" not in repo.branches() or committed_steps(repo) == [0]
    repo.commit(state_at(1), step=1)


@pytest.mark.parametrize("landed", [False, True])
def test_an_interrupt_after_a_commit_was_handed_over_lets_it_land(repo, monkeypatch, landed):
    with repo.writer("main", max_in_flight=2) as writer:
        writer.commit(state_at(0), step=0)
        submit = writer._committer.submit

        def interrupted(*args):
            future = submit(*args)
            if landed:
                future.result()
            raise KeyboardInterrupt

        monkeypatch.setattr(writer._committer, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.commit_async(state_at(1), step=1)
        monkeypatch.undo()
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 1, 2]


def test_a_process_that_ends_at_once_tells_of_a_commit_that_landed(tmp_path):
    program = """if True:
        import sys, time, torch, deltavc
        repo = deltavc.init(sys.argv[1])
        create = repo._store.create
        repo._store.create = lambda *args: time.sleep(0.5) or create(*args)
        future = repo.writer().commit_async({"a": torch.arange(9)}, step=1)
        future.add_done_callback(lambda future: print(future.exception() or future.result().step))
    """
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "repo")], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert torch.equal(deltavc.open(tmp_path / "repo").checkout()["a"], torch.arange(9))


def test_closing_tells_of_a_commit_that_failed_unheard(repo):
    with pytest.raises(StoreUnavailable), repo.store.down("before", WRITES), repo.writer("main") as writer:
        writer.commit_async(state_at(0), step=0)
    with repo.store.down("before", WRITES), repo.writer("main") as writer:
        assert isinstance(writer.commit_async(state_at(0), step=0).exception(), StoreUnavailable)
    assert "main" not in repo.branches()


def test_a_failure_that_nobody_heard_of_is_logged_when_the_writer_goes_on(repo, caplog):
    with repo.writer("main") as writer:
        with repo.store.down("before", WRITES):
            writer.commit_async(state_at(0), step=0)
            writer._committer.wait()
        writer.commit(state_at(1), step=1)
    assert "step 0" in caplog.text
    assert committed_steps(repo) == [1]


def test_a_callback_of_a_commit_cannot_wait_for_its_own_writer(repo):
    errors = []

    def call_back(future):
        try:
            writer.commit(state_at(1), step=1)
        except RuntimeError as error:
            errors.append(str(error))

    with repo.writer("main") as writer, Held(repo.store) as held:
        future = writer.commit_async(state_at(0), step=0)
        future.add_done_callback(call_back)
        held.open()
        future.result()
    assert len(errors) == 1
    assert "another thread" in errors[0]


def test_an_inherited_writer_is_closed_in_a_forked_child(repo):
    with repo.writer("main", keep="disk") as writer:
        writer.commit(state_at(0), step=0)
        writer._pid += 1  # as the child would see it
        writer.close()
        with pytest.raises(WriterClosed):
            writer.commit(state_at(1), step=1)
        writer._pid -= 1
        writer.commit(state_at(2), step=2)
    assert committed_steps(repo) == [0, 2]
