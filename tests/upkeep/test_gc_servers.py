"""Expire and gc on a real S3 server with PostgreSQL."""

import time

import pytest

import deltavc
from deltavc.errors import NoPath
from tests.upkeep.stores import grown, same_as_committed

pytestmark = pytest.mark.servers


def test_what_expired_is_deleted_and_what_is_kept_is_there(s3, postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url, options = f"{s3.new_bucket()}/run", s3.storage_options
    database = postgres.new_database()
    with deltavc.init(url, db=database, storage_options=options) as repo:
        ids = grown(repo, 10, snapshots=(4,))
        repo.set_policy(deltavc.Policy(keep_every=4, grace_seconds=8))
        with deltavc.open(url, db="sqlite://", storage_options=options) as other:
            other.checkout(ids[1])
            before = repo.stats().pack_bytes
            report = repo.expire()
            assert report.lost
            time.sleep(10)
            collected = repo.gc()
            assert 0 < collected.nbytes == report.freed_bytes
            assert repo.stats().pack_bytes < before
            for step in (0, 4, 8, 9):
                assert same_as_committed(other.checkout(ids[step]), step)
            with pytest.raises(NoPath):
                repo.checkout(report.lost[0])
        assert repo.gc().nbytes == 0
        assert repo.fsck(full=True).ok
