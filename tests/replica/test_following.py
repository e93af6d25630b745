"""A replica that follows a ref comes to its newest version, forwards and back, through outages, around bad versions."""

import logging
import multiprocessing
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest
import torch

import deltavc
from deltavc import opening
from deltavc.errors import (
    CorruptObject,
    ForeignWrite,
    HookFailed,
    LayoutMismatch,
    ReplicaClosed,
    ReplicaUnusable,
    StagingTooSmall,
    StoreDenied,
    UnknownRef,
    WrongWeights,
)
from deltavc.replica import following as following_module
from tests.faults import faulty
from tests.servers import S3Server, start_again, start_s3, stop, temporary_directory
from tests.states import random_bits, same, stepped

EVERY = 0.02
fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload(["tests.replica.test_following", "deltavc.writer", "deltavc.kernels.cpu"])


def state_at(step):
    """Any step's state from its number alone: 2 % of it changes with every step."""
    state = {"w": random_bits("bfloat16", (100, 70)), "m": random_bits("float32", (900,), 1)}
    for tensor in state.values():
        tensor.view(torch.int16).view(-1)[::50] = step
    return state


class Trainer:
    """Commits states by their step; `ids` are the versions in order."""

    def __init__(self, url, **place):
        self.path = url
        self.repo = deltavc.init(url, **place)
        self.ids = []
        self.commit(0)

    def commit(self, step, state=None, branch="main", **told):
        version = self.repo.commit(state_at(step) if state is None else state, branch, step=step, **told)
        self.ids.append(version.id)
        return version.id


@pytest.fixture
def trainer(tmp_path):
    trainer = Trainer(tmp_path / "repo")
    with trainer.repo:
        yield trainer


@pytest.fixture
def store(tmp_path):
    return faulty(str(tmp_path / "repo"))


@pytest.fixture
def sampler(trainer, tmp_path, monkeypatch, store):
    """The repository as the sampler's process sees it: through a store that can fail, with a database of its own."""
    with monkeypatch.context() as patch:
        patch.setattr(opening, "open_store", lambda *args: store)
        repo = deltavc.open(tmp_path / "repo", db=f"sqlite:///{tmp_path}/sampler.db")
    with repo:
        yield repo


@contextmanager
def following(repo, live=None, apply="auto", on_error=None, ref="main", every=EVERY, **options):
    """A replica at step 0, and what follows for it. What on_error was told is in `told`."""
    live = state_at(0) if live is None else live
    with repo.replica(live, **options) as replica:
        told = []
        follower = replica.follow(ref, every=every, apply=apply, on_error=on_error or told.append)
        follower.told = told
        with follower:
            yield replica, follower, live


def until(true, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def versions(replica):
    return [span.version for span in replica.history]


# --- where it comes to ---


def commit_and_go_back(url, pipe):
    """What a trainer's process does: steps 1 to 4, back to step 2, another step 3."""
    with deltavc.open(url) as repo, repo.writer("main") as writer:
        for step in (1, 2, 3, 4):
            pipe.send(writer.commit(state_at(step), step=step).id)
            pipe.recv()
        pipe.send(writer.rollback("step:2").id)
        pipe.recv()
        pipe.send(writer.commit(state_at(30), step=3).id)
        pipe.recv()


def test_commits_and_rollbacks_of_another_process_are_followed_and_every_read_is_of_one_version(tmp_path, sampler):
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=commit_and_go_back, args=(str(tmp_path / "repo"), theirs), daemon=True)
    seen, ended = [], threading.Event()

    def serve():
        while not ended.is_set():
            with replica.reading() as version:
                seen.append((time.monotonic(), version, int(live["w"].view(torch.int16)[0, 0])))
            time.sleep(0.0005)

    with following(sampler) as (replica, follower, live):
        serving = threading.Thread(target=serve)
        serving.start()
        process.start()
        for step in (1, 2, 3, 4, 2, 30):
            follower.wait_for(ours.recv(), timeout=60)
            assert same(live, state_at(step))
            ours.send("go on")
        process.join(60)
        ended.set()
        serving.join()
        assert follower.told == []
        replica.verify()
        steps = dict(zip(versions(replica), range(5), strict=False)) | {replica.version: 30}
        assert [steps[version] for version in versions(replica)] == [0, 1, 2, 3, 4, 2, 30]
        assert len({version for _, version, _ in seen}) > 1
        history = replica.history
        for when, version, step in seen:
            assert steps[version] == step
            spans = [span for span in history if span.begin <= when and (span.end is None or when <= span.end)]
            assert [span.version for span in spans] == [version]


def test_versions_that_came_and_went_while_somebody_read_are_passed_over(trainer, sampler):
    with following(sampler) as (replica, follower, live):
        with replica.reading():
            trainer.commit(1)
            until(lambda: follower.newest == trainer.ids[1])
            trainer.commit(2)
            trainer.commit(3)
            assert same(live, state_at(0))
        follower.wait_for(trainer.ids[3], timeout=60)
        assert trainer.ids[2] not in versions(replica)
        assert same(live, state_at(3))


@pytest.mark.parametrize("ref", ["side", "best:reward", "tags/good"])
def test_any_ref_can_be_followed(trainer, sampler, ref):
    trainer.repo.branch("side")
    trainer.repo.tag("good", trainer.commit(1, metrics={"reward": 1.0}))
    if ref == "side":
        trainer.commit(1, branch="side")
    with following(sampler, ref=ref) as (_, follower, live):
        follower.wait_for(ref, timeout=60)
        assert same(live, state_at(1))


# --- safe points ---


def test_nothing_is_applied_before_a_safe_point_and_then_the_newest_is(trainer, sampler):
    with following(sampler, apply="manual") as (replica, follower, live):
        assert follower.safe_point() is None
        for step in (1, 2, 3):
            version = trainer.commit(step)
            until(lambda version=version: follower.offered == version)
            assert same(live, state_at(0))
        applied = follower.safe_point()
        assert applied.version == replica.version == version
        assert same(live, state_at(3))
        # Each was staged on top of the one before: what was fetched is three steps, once.
        assert 0 < applied.nbytes <= sum(trainer.repo.version(step).stored_bytes for step in trainer.ids[1:])
        assert applied.stage_seconds > 0
        assert follower.safe_point() is None
        assert versions(replica) == [trainer.ids[0], version]


def test_a_safe_point_with_nothing_staged_takes_no_lock_and_waits_for_no_staging(trainer, sampler, store):
    with following(sampler, apply="manual") as (replica, follower, _), ExitStack() as stack:
        stack.enter_context(store.held(when=lambda key: key.startswith("packs/")))
        trainer.commit(1)
        until(lambda: any(key.startswith("packs/") for _, key in store.calls))
        for lock in (follower._changed, replica._gate._changed):
            stack.enter_context(lock)
        found = []
        calling = threading.Thread(target=lambda: found.append(follower.safe_point()))
        calling.start()
        calling.join(10)
        assert found == [None]


def test_two_threads_at_a_safe_point_apply_once(trainer, sampler):
    with following(sampler, apply="manual") as (_, follower, live):
        for step in range(1, 6):
            version = trainer.commit(step)
            until(lambda version=version: follower.offered == version)
            found = []
            threads = [threading.Thread(target=lambda found=found: found.append(follower.safe_point())) for _ in "1234"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [applied.version for applied in found if applied is not None] == [version]
            assert same(live, state_at(step))


def test_a_safe_point_inside_reading_is_refused_and_the_version_stays_staged(trainer, sampler):
    with following(sampler, apply="manual") as (replica, follower, _):
        version = trainer.commit(1)
        until(lambda: follower.offered == version)
        with replica.reading(), pytest.raises(RuntimeError, match="inside reading"):
            follower.safe_point()
        assert follower.safe_point().version == version


def test_a_loop_that_comes_seldom_to_a_safe_point_is_not_kept_off_by_newer_versions(trainer, sampler):
    with following(sampler, apply="manual", every=0.2) as (_, follower, _):
        ended = threading.Event()

        def train():
            for step in range(1, 1000):
                if ended.is_set():
                    break
                trainer.commit(step)

        training = threading.Thread(target=train)
        training.start()
        for _ in range(3):
            until(lambda: follower.safe_point() is not None or time.sleep(0.1))
        ended.set()
        training.join()


def test_moves_of_ones_own_do_no_harm(trainer, sampler):
    with following(sampler, apply="manual") as (replica, follower, live):
        version = trainer.commit(1)
        until(lambda: follower.offered == version)
        replica.apply()
        assert follower.safe_point() is None
        replica.move(trainer.ids[0])
        version = trainer.commit(2)
        until(lambda: follower.offered == version)
        follower.safe_point()
        assert same(live, state_at(2))


@pytest.mark.parametrize("apply", ["auto", "manual"])
def test_a_move_of_ones_own_gets_where_it_was_told_while_the_ref_moves(trainer, sampler, apply):
    ended = threading.Event()

    def train():
        for step in range(1, 1000):
            if ended.is_set():
                break
            trainer.commit(step)

    def serve(follower):
        while not ended.is_set():
            follower.safe_point()

    with following(sampler, apply=apply, every=0.001) as (replica, follower, _):
        threads = [threading.Thread(target=train), threading.Thread(target=serve, args=(follower,))]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                assert replica.move(trainer.ids[0]).version == trainer.ids[0]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert follower.told == []


# --- a newer version while one is being staged ---


def test_staging_goes_on_to_a_newer_version_that_it_leads_to(trainer, sampler, store):
    with following(sampler) as (replica, follower, live):
        with store.held(when=lambda key: key.startswith("packs/")):
            trainer.commit(1)
            until(lambda: any(key.startswith("packs/") for _, key in store.calls))
            trainer.commit(2)
            until(lambda: len(store.calls) > 20)
        follower.wait_for(trainer.ids[2], timeout=60)
        assert versions(replica) == trainer.ids
        assert same(live, state_at(2))


def test_what_is_no_way_to_the_newest_version_is_cancelled(trainer, sampler, store):
    with following(sampler) as (replica, follower, live):
        with store.held(when=lambda key: key.startswith("packs/")):
            trainer.commit(1)
            until(lambda: any(key.startswith("packs/") for _, key in store.calls))
            trainer.repo.rollback("main", trainer.ids[0])
            trainer.commit(2)
            until(lambda: replica._staged.cancelled.is_set())
        follower.wait_for(trainer.ids[2], timeout=60)
        assert trainer.ids[1] not in versions(replica)
        assert same(live, state_at(2))
        assert follower.told == []


# --- what cannot be reached ---


def spoiled(trainer, how):
    """A version that cannot be reached, and by what error."""
    if how == "other tensors":
        return trainer.commit(1, {**state_at(1), "more": torch.ones(3)}), LayoutMismatch
    if how == "too large":
        return trainer.commit(1, stepped(state_at(0), 1, 0.9)), StagingTooSmall
    before = set(trainer.path.glob("packs/*/*"))
    version = trainer.commit(1)
    for pack in set(trainer.path.glob("packs/*/*")) - before:
        pack.chmod(0o644)
        pack.write_bytes(bytes(byte ^ 255 for byte in pack.read_bytes()))
    return version, CorruptObject


@pytest.mark.parametrize("apply", ["auto", "manual"])
@pytest.mark.parametrize("how", ["other tensors", "too large", "damaged"])
def test_a_version_that_cannot_be_reached_is_told_and_passed_over(trainer, sampler, store, how, apply):
    with following(sampler, apply=apply, staging_bytes=4000) as (replica, follower, live):
        with store.held(when=lambda key: key.startswith("packs/")):
            version, error = spoiled(trainer, how)
        with pytest.raises(error):
            follower.wait_for(version, timeout=60)
        assert isinstance(follower.error, error)
        until(lambda: follower.told == [follower.error])
        assert follower.running
        assert same(live, state_at(0))
        trainer.repo.rollback("main", trainer.ids[0])
        version = trainer.commit(2)
        until(lambda: follower.safe_point() or replica.version == version)
        until(lambda: follower.error is None)
        assert same(live, state_at(2))
        assert len(follower.told) == 1


@pytest.mark.parametrize("apply", ["auto", "manual"])
def test_a_version_that_the_hook_refuses_is_taken_back_and_passed_over(trainer, sampler, apply):
    refused = []

    def on_apply(applied):
        if applied.version in refused:
            raise ValueError("not this one")

    with following(sampler, apply=apply, on_apply=on_apply) as (replica, follower, live):
        with replica.reading():
            refused.append(trainer.commit(1))
        until(lambda: follower.safe_point() is not None or follower.told)
        assert isinstance(follower.error, HookFailed)
        assert same(live, state_at(0))
        version = trainer.commit(2)
        until(lambda: follower.safe_point() is not None or replica.version == version)
        assert same(live, state_at(2))


def test_an_error_in_on_error_does_not_end_following(trainer, sampler, caplog):
    with following(sampler, on_error=lambda error: 1 // 0) as (_, follower, live):
        trainer.commit(1, {"other": torch.ones(3)})
        until(lambda: follower.error)
        version = trainer.commit(2)
        follower.wait_for(version, timeout=60)
        assert same(live, state_at(2))
    assert "ZeroDivisionError" in caplog.text


# --- the end ---


@pytest.mark.parametrize("apply", ["auto", "manual"])
def test_a_foreign_write_that_staging_meets_ends_following(trainer, sampler, apply):
    with following(sampler, apply=apply) as (replica, follower, live):
        live["w"].view(torch.int16)[0, 0] = 77
        version = trainer.commit(1)
        with pytest.raises(WrongWeights, match="'w'"):
            follower.wait_for(version, timeout=60)
        until(lambda: follower.told == [follower.error])
        assert not follower.running
        for _ in range(2):
            with pytest.raises(ReplicaUnusable):
                follower.safe_point()
        replica.move(version, allow_long_pause=True)
        with replica.follow("main", every=EVERY) as again:
            again.wait_for(trainer.commit(2), timeout=60)
        assert same(live, state_at(2))


def test_a_foreign_write_that_a_safe_point_meets_ends_following(trainer, sampler):
    with following(sampler, apply="manual") as (_, follower, live):
        version = trainer.commit(1)
        until(lambda: follower.offered == version)
        live["w"].view(torch.int16)[0, 0] = 77
        with pytest.raises(ForeignWrite):
            follower.safe_point()
        with pytest.raises(ReplicaUnusable):
            follower.safe_point()
        until(lambda: follower.told == [follower.error])
        assert not follower.running


def test_what_verify_finds_is_said_by_the_next_safe_point(trainer, sampler):
    with following(sampler) as (replica, follower, live):
        live["w"].view(torch.int16)[0, 1] ^= 1
        with pytest.raises(deltavc.DeltavcError):
            replica.verify()
        with pytest.raises(ReplicaUnusable):
            follower.safe_point()
        trainer.commit(1)
        until(lambda: not follower.running)
        assert isinstance(follower.error, ReplicaUnusable)


def test_a_ref_that_names_nothing_is_refused_and_one_that_is_deleted_ends_following(trainer, sampler):
    with sampler.replica(state_at(0)) as replica:
        with pytest.raises(UnknownRef):
            replica.follow("mian")
        with pytest.raises(ValueError, match="apply="):
            replica.follow("main", apply="sometimes")
        with pytest.raises(ValueError, match="every="):
            replica.follow("main", every=0)
    trainer.repo.branch("side")
    with following(sampler, ref="side") as (_, follower, _):
        trainer.repo.delete_branch("side")
        until(lambda: not follower.running)
        assert isinstance(follower.error, UnknownRef)
        assert follower.safe_point() is None  # what is live is as good as it was


def test_a_replica_follows_one_ref_at_a_time(trainer, sampler):
    with following(sampler) as (replica, follower, live):
        with pytest.raises(RuntimeError, match="already"):
            replica.follow("main")
        follower.close()
        follower.close()
        assert not follower.running
        with pytest.raises(TimeoutError):
            follower.wait_for(trainer.commit(1), timeout=60)
        assert same(live, state_at(0))
        replica.follow("main", every=EVERY).wait_for("main", timeout=60)
        assert same(live, state_at(1))


def test_closing_the_replica_ends_following(trainer, sampler):
    replica = sampler.replica(state_at(0))
    follower = replica.follow("main", every=EVERY, apply="manual")
    trainer.commit(1)
    until(lambda: follower.offered)
    replica.close()
    assert not follower.running
    assert follower.safe_point() is None
    assert follower.error is None
    with pytest.raises(ReplicaClosed):
        replica.stage("main")


def test_closing_does_not_wait_for_the_next_look(trainer, sampler):
    started = time.monotonic()
    with following(sampler, every=600):
        pass
    assert time.monotonic() - started < 60


def test_a_callback_may_close_what_it_is_called_by(trainer, sampler):
    ended = threading.Event()

    def on_error(error):
        follower.close()
        ended.set()

    with following(sampler, on_error=on_error) as (_, follower, _):
        trainer.commit(1, {"other": torch.ones(3)})
        assert ended.wait(60)
        until(lambda: not follower._thread.is_alive())


@pytest.mark.parametrize("error", [HookFailed, ForeignWrite])
def test_a_callback_at_a_safe_point_may_close_what_it_is_called_by(trainer, sampler, error):
    told = []

    def on_error(found):
        told.append(type(found))
        follower.close()

    def on_apply(applied):
        if error is HookFailed and applied.version != trainer.ids[0]:
            raise ValueError("not this one")

    with following(sampler, apply="manual", on_error=on_error, on_apply=on_apply) as (_, follower, live):
        version = trainer.commit(1)
        until(lambda: follower.offered == version)
        if error is ForeignWrite:
            live["w"].view(torch.int16)[0, 0] = 77

        def call():
            with suppress(ForeignWrite):
                follower.safe_point()

        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        calling.join(30)
        assert not calling.is_alive()
        assert told == [error]


def test_waiting_for_a_version_ends_when_its_time_is_over(trainer, sampler):
    trainer.repo.branch("side")
    other = trainer.commit(1, branch="side")
    with following(sampler) as (_, follower, _):
        with pytest.raises(TimeoutError, match=other):
            follower.wait_for("side", timeout=0.1)
        follower.wait_for("main", timeout=0)


# --- outages ---


def outages(caplog):
    return [record.message for record in caplog.records if record.name == "deltavc.watch"]


@pytest.mark.parametrize("which", ["", "packs/"])
def test_an_outage_of_the_store_is_logged_once_and_waited_out(trainer, sampler, store, caplog, which):
    with following(sampler) as (_, follower, live):
        with store.down(when=lambda key: key.startswith(which)):
            version = trainer.commit(1)
            until(lambda: follower._watch._failures > 2)
            assert follower.running
            assert same(live, state_at(0))
        follower.wait_for(version, timeout=60)
        until(lambda: len(outages(caplog)) > 1)
        assert same(live, state_at(1))
        assert follower.told == []
    began, ended = outages(caplog)
    assert "injected" in began
    assert ended.startswith("following main again")


def test_what_somebody_has_to_mend_is_told_once_and_looked_at_again(trainer, sampler, store, monkeypatch):
    monkeypatch.setattr(following_module, "LONGEST_WAIT", EVERY)
    with following(sampler) as (_, follower, live):
        follower.wait_for("main", timeout=60)
        with store.down(StoreDenied("/repo", "get", "injected")):
            version = trainer.commit(1)
            until(lambda: follower.error)
            store.calls.clear()
            until(lambda: len(store.calls) > 5)
            assert follower.running
        follower.wait_for(version, timeout=60)
        until(lambda: follower.error is None)
        assert [type(error) for error in follower.told] == [StoreDenied]
        assert same(live, state_at(1))


def test_following_can_begin_during_an_outage(trainer, sampler, store):
    with sampler.replica(state_at(0)) as replica:
        version = trainer.commit(1)
        with store.down():
            follower = replica.follow("main", every=EVERY)
            until(lambda: follower._watch._failures > 1)
        follower.wait_for(version, timeout=60)


@pytest.mark.servers
def test_a_database_that_is_away_is_waited_for(trainer, tmp_path, postgres, caplog):
    url = postgres.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    with (
        deltavc.open(tmp_path / "repo", db=url) as repo,
        psycopg.connect(postgres._server.get_uri(), autocommit=True) as connection,
        following(repo) as (_, follower, live),
    ):
        follower.wait_for("main", timeout=60)
        connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        version = trainer.commit(1)
        until(lambda: follower._watch._failures > 2)
        connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        follower.wait_for(version, timeout=60)
        assert same(live, state_at(1))
        assert follower.told == []
        until(lambda: len(outages(caplog)) > 1)
    assert len(outages(caplog)) == 2


@pytest.mark.long
@pytest.mark.servers
def test_an_s3_server_that_is_stopped_and_started_again_is_followed_on(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with temporary_directory("deltavc-s3-") as directory:
        process, ports, log = start_s3(directory)
        try:
            server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
            place = {"url": server.new_bucket(), "storage_options": server.storage_options}
            trainer = Trainer(**place, db="sqlite://")
            with trainer.repo, deltavc.open(**place, db="sqlite://") as repo, following(repo) as (_, follower, live):
                follower.wait_for(trainer.commit(1), timeout=60)
                stop(process, ports)
                until(lambda: follower._watch._failures > 5)
                assert same(live, state_at(1))
                process = start_again(log.parent, ports)
                trainer.repo.rollback("main", trainer.ids[0])
                follower.wait_for(trainer.ids[0], timeout=60)
                assert same(live, state_at(0))
                assert follower.told == []
                until(lambda: len(outages(caplog)) > 1)
        finally:
            stop(process, ports)
    assert len(outages(caplog)) == 2
