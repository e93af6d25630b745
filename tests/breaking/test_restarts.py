"""The object store and PostgreSQL killed in the middle of things, and started again with the data they left."""

import time

import pytest

import deltavc
from deltavc.errors import CommitInDoubt, DatabaseUnavailable, DeltavcError, StoreUnavailable
from tests.breaking.operations import TIGHT, commit, grow
from tests.breaking.tally import count
from tests.breaking.whole import check, lineage, without_weights
from tests.servers import S3Server, start_again, start_s3, stop, temporary_directory
from tests.states import random_bits, same
from tests.upkeep.stores import state_at

pytestmark = pytest.mark.servers


def test_a_database_server_that_crashes_costs_no_commit_and_is_right_afterwards(postgres, tmp_path):
    with deltavc.init(tmp_path / "repo", db=postgres.new_database()) as repo, repo.writer() as writer:
        grow(repo)
        writer.move("main")
        for step in range(100, 106, 3):
            writer.commit(state_at(step), step=step)
            postgres.abort()
            try:
                writer.commit(state_at(step + 1), step=step + 1)
                for needs_it in (repo.log, repo.expire, repo.gc, repo.compact, repo.reindex):
                    with pytest.raises(DatabaseUnavailable):
                        needs_it()
            finally:
                postgres.start_again()
                count(restarts=1, commits=3, operations=4)
            writer.commit(state_at(step + 2), step=step + 2)
        repo.expire()
        repo.gc()
        check(repo)
        told = lineage(repo)
        assert told.steps >= set(range(100, 106))
    with deltavc.open(tmp_path / "repo", db="sqlite://") as anew:
        assert lineage(anew) == told
        check(anew)
        assert not without_weights(anew) & {*told.branches.values(), *told.tags.values()}


def large_state_at(step):
    return {"x": random_bits("uint8", (3_000_000,), step)}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_store_that_crashes_during_commits_costs_what_was_not_committed_and_nothing_else(postgres):
    with temporary_directory("deltavc-s3-") as directory:
        process, ports, log = start_s3(directory)
        try:
            server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
            place = {"url": server.new_bucket(), "storage_options": server.storage_options}
            with deltavc.init(**place, db=postgres.new_database()) as repo, repo.writer() as writer:
                writer.commit(large_state_at(0), step=0)
                future = writer.commit_async(large_state_at(1), step=1)
                process.kill()
                process.wait()
                started = time.monotonic()
                with pytest.raises((StoreUnavailable, CommitInDoubt)):
                    future.result()
                with pytest.raises((StoreUnavailable, CommitInDoubt)):
                    writer.commit(large_state_at(2), step=2)
                assert time.monotonic() - started < 150
                process = start_again(log.parent, ports)
                count(restarts=1, commits=4)
                writer.commit(large_state_at(3), step=3)
                found = [version.step for version in repo.log()][::-1]
                assert found in ([0, 3], [0, 1, 3], [0, 2, 3])
            with deltavc.open(**place, db="sqlite://") as anew:
                assert [version.step for version in anew.log()][::-1] == found
                for version in anew.log():
                    assert same(anew.checkout(version.id), large_state_at(version.step))
        finally:
            stop(process, ports)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_store_that_crashes_under_clean_up_loses_nothing_that_is_kept(tmp_path):
    with temporary_directory("deltavc-s3-") as directory:
        process, ports, log = start_s3(directory)
        try:
            server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
            place = {"url": server.new_bucket(), "storage_options": server.storage_options}
            with deltavc.init(**place, db=f"sqlite:///{tmp_path}/lineage.db") as repo:
                grow(repo)
                for does in (lambda: repo.compact(TIGHT), repo.expire, repo.gc):
                    process.kill()
                    process.wait()
                    with pytest.raises(DeltavcError):
                        does()
                    process = start_again(log.parent, ports)
                    count(restarts=1, operations=2)
                    does()
                    check(repo)
                commit(repo, 20)
                told = lineage(repo)
                assert not without_weights(repo) & {*told.branches.values(), *told.tags.values()}
        finally:
            stop(process, ports)
