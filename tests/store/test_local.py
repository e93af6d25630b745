import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from deltavc.errors import ObjectMissing, StoreDenied, StoreFull, StoreUnavailable, StoreUnfit
from deltavc.store import open_store
from tests.servers import temporary_directory
from tests.store.conformance import BODY, keys


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    store = open_store(root)
    store.prepare()
    return store


def files_below(root):
    return [path for path in root.rglob("*") if path.is_file()]


def test_opening_and_reading_create_nothing(root):
    store = open_store(root)
    with pytest.raises(ObjectMissing):
        store.get("deltavc.json")
    assert not root.exists()


def test_a_directory_that_vanished_is_not_taken_for_an_empty_store(store, root, tmp_path):
    store.put("a/x", BODY)
    root.rename(tmp_path / "elsewhere")
    for use in (
        lambda: store.get("a/x"),
        lambda: store.stat("a/x"),
        lambda: list(store.list()),
        lambda: list(store.list("a/")),
        lambda: store.put("a/x", BODY),
        lambda: store.create("a/y", BODY),
        lambda: store.delete("a/x"),
        lambda: store.now(),
        lambda: store.sweep(),
    ):
        with pytest.raises(StoreUnavailable):
            use()
    assert not root.exists()


def test_deleting_the_last_object_removes_its_directories(store, root):
    store.put("a/b/c", BODY)
    store.put("a/d", BODY)
    store.delete("a/b/c")
    assert [path.name for path in root.rglob("*")] == ["a", "d"]
    store.delete("a/d")
    assert not list(root.iterdir())


def test_writers_and_deleters_of_one_directory_do_not_disturb_each_other(store):
    def churn(number):
        for _ in range(60):
            store.put(f"a/b/{number}", BODY)
            assert store.get(f"a/b/{number}") == BODY
            store.delete(f"a/b/{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    assert keys(store) == []


def test_a_killed_writer_leaves_no_object_and_a_leftover_that_is_swept_when_old(store, root):
    writer = "import sys; from deltavc.store import open_store; open_store(sys.argv[1]).put_path('a/x', '/dev/zero')"
    process = subprocess.Popen([sys.executable, "-c", writer, str(root)])
    while not files_below(root):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()

    [leftover] = files_below(root)
    assert keys(store) == []
    with pytest.raises(ObjectMissing):
        store.get("a/x")
    assert store.sweep() == 0
    assert leftover.exists()
    yesterday = time.time() - timedelta(days=1, seconds=5).total_seconds()
    os.utime(leftover, (yesterday, yesterday))
    store.put("a/x", BODY)
    os.utime(root / "a/x", (yesterday, yesterday))
    assert store.sweep() == 1
    assert files_below(root) == [root / "a/x"]


def test_an_object_is_as_old_as_its_name(store):
    """However long its writer was stopped between its last byte and that."""

    def place(new, target):
        os.utime(new.path, (0, 0))
        return os.link(new.path, target) is None if target.endswith("created") else os.replace(new.path, target) is None

    before = store.now()
    for key in ("created", "put"):
        store._write("write", key, lambda file: file.write(BODY), place)
        assert before <= store.stat(key).modified <= store.now()


def test_readers_never_see_half_an_object(store):
    store.put("x", b"\0" * 100_000)
    done = threading.Event()

    def overwrite():
        for value in range(1, 40):
            store.put("x", bytes([value]) * 100_000)
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(overwrite)
        while not done.is_set():
            body = store.get("x")
            assert body == body[:1] * 100_000
        writing.result()


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("below", ["", "/x", "/x/y"])
def test_a_file_in_the_way_is_no_fault_of_any_network(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnfit, match="is a file"):
        open_store(f"{tmp_path / 'file'}{below}").prepare()


def test_a_full_disk_is_said_to_be_full_and_keeps_nothing_half_written(small_disk, tmp_path):
    store = open_store(small_disk)
    store.put("old", BODY)
    large = os.urandom(1 << 20)
    (tmp_path / "large").write_bytes(large)
    other = open_store(tmp_path / "other")
    other.prepare()
    other.put("large", large)
    for write in (
        lambda: store.put("a/x", large),
        lambda: store.create("a/x", large),
        lambda: store.put("old", large),
        lambda: store.put_path("a/x", tmp_path / "large"),
        lambda: other.get_path("large", small_disk / "got"),
    ):
        with pytest.raises(StoreFull):
            write()
        assert files_below(small_disk) == [small_disk / "old"]
    assert store.get("old") == BODY
    store.put("a/x", BODY)


def test_a_limit_on_file_sizes_counts_as_a_full_disk(store, root):
    assert in_a_child(limited_put, store) == "StoreFull"
    assert files_below(root) == []


def limited_put(store):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    store.put("a/x", bytes(2000))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["that may be read", "that may not be entered"])
def test_a_directory_of_somebody_else_denies(mode):
    with temporary_directory("deltavc-store-") as root:
        store = open_store(root)
        store.put("x", BODY)
        (root / "x").chmod(0o600)
        root.chmod(mode)
        for use in (denied_put, denied_create, denied_get, denied_delete):
            assert in_a_child(use, store) == StoreDenied.__name__
        assert store.get("x") == BODY


def denied_put(store):
    os.setuid(65534)
    store.put("y", BODY)


def denied_create(store):
    os.setuid(65534)
    store.create("y", BODY)


def denied_get(store):
    os.setuid(65534)
    store.get("x")


def denied_delete(store):
    os.setuid(65534)
    store.delete("x")


def in_a_child(call, store):
    """Call in a forked process and return the name of the error that it ended with."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def run():
        try:
            call(store)
        except Exception as error:
            results.put(type(error).__name__)
        else:
            results.put("no error")

    child = context.Process(target=run)
    child.start()
    child.join(60)
    return results.get()


def test_a_missing_source_file_is_not_a_missing_object(store, tmp_path):
    with pytest.raises(StoreUnavailable, match="nothing-here"):
        store.put_path("x", tmp_path / "nothing-here")
    assert keys(store) == []


def test_a_file_system_without_links_is_unfit(store, monkeypatch):
    def link(source, target):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnfit, match="cannot link"):
        store.create("x", BODY)
    assert keys(store) == []


def test_a_file_url_names_the_same_store(store, root):
    store.put("x", BODY)
    assert open_store(root.as_uri()).get("x") == BODY
    assert open_store(root.as_uri()).url == str(root)
