"""A repository on a disk that cannot be written to: everything that only reads works."""

import time

import pytest

import deltavc
from deltavc.errors import DatabaseUnavailable, StoreDenied
from tests.mounts import make_read_only, mounted
from tests.states import same
from tests.upkeep.stores import grown, state_at


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "disk", 8 << 20) as place:
        if place is None:
            pytest.skip("this user may not mount a disk")
        yield place


def test_what_only_reads_works_on_a_read_only_disk_and_what_writes_is_refused_in_words(disk):
    with deltavc.init(disk / "repo") as repo:
        ids = grown(repo, 3, metrics={"loss": 0.5})
    make_read_only(disk)
    with deltavc.open(disk / "repo") as repo:
        assert [version.id for version in repo.log()] == ids[::-1]
        assert same(repo.checkout("step:1"), state_at(1))
        assert repo.resolve("main~2") == ids[0]
        assert repo.fsck(full=True).ok
        assert repo.verify("main").ok
        with pytest.raises(StoreDenied):
            repo.commit(state_at(9))
        with pytest.raises(StoreDenied):
            repo.tag("v1", "main")
        with pytest.raises(StoreDenied):
            repo.gc()
        assert [version.id for version in repo.log()] == ids[::-1]
    with deltavc.open(disk / "repo", db="none") as repo:
        assert same(repo.checkout("main~1"), state_at(1))


def test_a_database_that_is_named_on_a_read_only_disk_is_refused_at_once(disk):
    deltavc.init(disk / "repo").close()
    make_read_only(disk)
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        deltavc.open(disk / "repo", db=f"sqlite:///{disk}/repo/lineage.db")
    assert time.monotonic() - started < 10
