"""A disk that fills up at any point of anything: an error, nothing half written, and it can be repeated with more room.

The disk is a tmpfs where this user may mount one, and otherwise a limit on the size of the files that a child writes.
It holds the repository and its database, or what is put aside in temporary files.
"""

import contextlib
import os
import resource
import shutil
import tempfile

import pytest

import deltavc
from deltavc import held
from deltavc.errors import DeltavcError, StoreFull
from deltavc.lineage import index
from deltavc.upkeep import bundle
from tests.breaking.operations import OPERATIONS, TIGHT, Operation, attempt, commit
from tests.breaking.tally import count
from tests.breaking.template import template_on_disk
from tests.breaking.whole import check, lineage, without_weights
from tests.mounts import mounted
from tests.processes import in_a_fork
from tests.upkeep.stores import state_at

PAGE = 4096
DISK = 3 << 20
NAMES = ["commit with a snapshot", "tag", "rollback", "expire", "compact", "reindex", "repair"]

pytestmark = pytest.mark.usefixtures("clocked")


@pytest.fixture(params=["mounted", pytest.param("limited", marks=pytest.mark.long)])
def disk(tmp_path, request):
    """A small disk; None for a limit in its place, also where this user may not mount one."""
    if request.param == "limited":
        yield None
        return
    with mounted(tmp_path / "disk", DISK) as place:
        yield place


@contextlib.contextmanager
def room(place, num_pages):
    """Leave so many pages on a disk."""
    ballast = place / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(PAGE))
    os.truncate(ballast, max(0, ballast.stat().st_size - num_pages * PAGE))
    try:
        yield
    finally:
        ballast.unlink()


def run_with_little_room(operation, url, num_pages, disk, failed):
    """In a child: run an operation, which may fail with an error of ours and no other; then it leaves a file."""
    if disk is None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_pages * PAGE, -1))
    try:
        with deltavc.open(url) as repo:
            operation.run(repo)
    except DeltavcError:  # also when it is opened: SQLite makes files
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        failed.touch()


def runs_with_little_room(operation, url, num_pages, disk, failed):
    """Whether there was room enough."""
    with room(disk, num_pages) if disk else contextlib.nullcontext():
        child = in_a_fork(run_with_little_room, operation, url, num_pages, disk, failed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if not failed.exists():
        return True
    failed.unlink()
    count(full=1)
    return False


@pytest.mark.parametrize("step", [7, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_what_meets_a_full_disk_is_done_or_not_and_can_be_repeated(name, step, disk, tmp_path, directory):
    operation, made = OPERATIONS[name], template_on_disk(name, directory)
    for num_pages in range(0, 30, step):
        url = str((disk or tmp_path) / "repo")
        made.copy(url)
        done = runs_with_little_room(operation, url, num_pages, disk, tmp_path / "failed")
        count(**{"commits" if name.startswith("commit") else "operations": 1})
        with deltavc.open(url) as repo:
            found = lineage(repo)
            assert found == made.after if done else found in (made.before, made.after)
            if not (operation.once and found == made.after):
                assert attempt(operation, repo) is None
            assert check(repo).without_weights <= len(made.without)
            assert lineage(repo) == made.after
        with deltavc.open(url, db="sqlite://") as stranger:
            assert lineage(stranger) == made.after
            assert without_weights(stranger) <= made.without
        shutil.rmtree(url)


def commit_from_a_base_on_the_disk(repo):
    with repo.writer(keep="disk") as writer:
        writer.commit(state_at(20), step=20)


def fill_another_database(repo):
    with deltavc.open(repo.url, db="sqlite://") as stranger:
        stranger.log(all=True)


PUT_ASIDE = {
    "commit": Operation(commit_from_a_base_on_the_disk),
    "compact": Operation(lambda repo: repo.compact(TIGHT, memory=1)),
    "expire": Operation(lambda repo: repo.expire(memory=1)),
    "another database": Operation(fill_another_database),
    "reindex": Operation(lambda repo: repo.reindex()),
    "fsck": Operation(lambda repo: check(repo)),
}


@pytest.mark.parametrize("disk", ["mounted"], indirect=True)
@pytest.mark.parametrize("step", [15, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PUT_ASIDE)
def test_what_has_no_room_to_put_things_aside_says_so_and_harms_nothing(
    name, step, disk, tmp_path, directory, monkeypatch
):
    if disk is None:
        pytest.skip("this user may not mount a small disk")
    monkeypatch.setattr(index, "_MANY", 1)
    monkeypatch.setattr(held, "MAPPED", 1)
    made = template_on_disk("expire", directory)
    url = made.copy(str(tmp_path / "repo")).url
    with deltavc.open(url) as repo:
        bundle.write(repo._access(1 << 28))
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    there_was_room = []
    for num_pages in (*range(0, 30, step), 500):
        there_was_room.append(runs_with_little_room(PUT_ASIDE[name], url, num_pages, disk, tmp_path / "failed"))
        count(**{"commits" if name == "commit" else "operations": 1})
        assert not [*disk.iterdir()]
        with deltavc.open(url) as repo:
            assert not without_weights(repo) & {4, 11}
            check(repo)
    assert there_was_room == sorted(there_was_room)
    assert (there_was_room[0], there_was_room[-1]) == (False, True)


@pytest.mark.parametrize("disk", ["mounted"], indirect=True)
def test_clean_up_makes_room_on_a_full_disk_with_a_database_in_memory(disk, directory):
    if disk is None:
        pytest.skip("this user may not mount a small disk")
    store = template_on_disk("gc", directory).copy(disk / "repo")
    with room(disk, 0), deltavc.open(store.url, db="sqlite://") as repo:
        with pytest.raises(StoreFull):
            commit(repo, 20)
        assert repo.gc().num_packs > 0
        count(full=1, operations=1)
    with deltavc.open(store.url) as repo:
        check(repo)
