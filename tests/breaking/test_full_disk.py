"""A disk that fills up at any point of anything: an error, nothing half written, and it can be repeated with more room.

The disk is a tmpfs where this user may mount one, and otherwise a limit on the size of the files that a child writes.
"""

import contextlib
import os
import resource
import shutil
import subprocess

import pytest

import deltavc
from deltavc.errors import DatabaseUnavailable, StoreFull
from tests.breaking.operations import OPERATIONS, attempt, commit
from tests.breaking.tally import count
from tests.breaking.template import template_on_disk
from tests.breaking.whole import check, lineage, without_weights
from tests.processes import in_a_fork

PAGE = 4096
DISK = 3 << 20
NAMES = ["commit with a snapshot", "tag", "rollback", "expire", "compact", "reindex", "repair"]

pytestmark = pytest.mark.usefixtures("clocked")


@pytest.fixture(params=["mounted", pytest.param("limited", marks=pytest.mark.long)])
def disk(tmp_path, request):
    """A small disk; None for a limit in its place, also where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", place]
    mounted = request.param == "mounted" and subprocess.run(mount, capture_output=True).returncode == 0
    yield place if mounted else None
    if mounted:
        subprocess.run(["umount", place], check=True)


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


def run_with_little_room(name, url, num_pages, disk):
    """In a child: run an operation, which may fail with an error of ours and no other."""
    if disk is None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_pages * PAGE, -1))
    with contextlib.suppress(DatabaseUnavailable), deltavc.open(url) as repo:  # SQLite makes files when it is opened
        attempt(OPERATIONS[name], repo)


@pytest.mark.parametrize("step", [7, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_what_meets_a_full_disk_is_done_or_not_and_can_be_repeated(name, step, disk, tmp_path, directory):
    operation, made = OPERATIONS[name], template_on_disk(name, directory)
    for num_pages in range(0, 30, step):
        url = str((disk or tmp_path) / "repo")
        made.copy(url)
        with room(disk, num_pages) if disk else contextlib.nullcontext():
            child = in_a_fork(run_with_little_room, name, url, num_pages, disk)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        count(full=1, **{"commits" if name.startswith("commit") else "operations": 1})
        with deltavc.open(url) as repo:
            found = lineage(repo)
            assert found in (made.before, made.after)
            if not (operation.once and found == made.after):
                assert attempt(operation, repo) is None
            assert check(repo).without_weights <= len(made.without)
            assert lineage(repo) == made.after
        with deltavc.open(url, db="sqlite://") as stranger:
            assert lineage(stranger) == made.after
            assert without_weights(stranger) <= made.without
        shutil.rmtree(url)


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
