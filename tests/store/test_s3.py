import multiprocessing
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from deltavc.errors import ObjectMissing, StoreDenied, StoreUnavailable, StoreUnfit
from deltavc.store import open_store
from deltavc.store.retry import Retry
from tests.store.conformance import BODY, keys

pytestmark = pytest.mark.servers

QUICK = Retry(attempts=4, first_wait=0.01)


@pytest.fixture(scope="module")
def bucket(s3):
    return s3.new_bucket()


@pytest.fixture
def url(bucket):
    return f"{bucket}/{secrets.token_hex(8)}"


@pytest.fixture
def store(s3, url):
    return open_store(url, s3.storage_options)


@pytest.fixture
def faulty(s3, url, proxy):
    """The same store, reached through the proxy."""
    from deltavc.store.s3 import S3Store

    return S3Store(url.removeprefix("s3://"), proxy.options(s3.storage_options), QUICK)


def operations(store, tmp_path):
    (tmp_path / "file").write_bytes(BODY)
    return {
        "get": lambda: store.get("x"),
        "stat": lambda: store.stat("x"),
        "list": lambda: list(store.list()),
        "put": lambda: store.put("y", BODY),
        "create": lambda: store.create("z", BODY),
        "put_path": lambda: store.put_path("y", tmp_path / "file"),
        "delete": lambda: store.delete("x"),
        "sweep": lambda: store.sweep(),
    }


# --- refusals ---


def test_wrong_credentials_are_denied(s3, url, tmp_path):
    for options in (s3.stranger_options, s3.storage_options | {"key": "nobody"}):
        for operation in operations(open_store(url, options), tmp_path).values():
            with pytest.raises(StoreDenied):
                operation()


def test_a_reader_may_read_and_is_denied_writing(s3, store, url, tmp_path):
    store.put("x", BODY)
    may = operations(open_store(url, s3.reader_options), tmp_path)
    assert may["get"]() == BODY
    assert len(may["list"]()) == 1
    for write in ("put", "create", "put_path", "delete"):
        with pytest.raises(StoreDenied):
            may[write]()
    assert keys(store) == ["x"]


def test_a_bucket_that_is_not_there_is_unavailable_and_not_empty(s3, tmp_path):
    may = operations(open_store("s3://no-such-bucket/repo", s3.storage_options), tmp_path)
    for name in ("get", "list", "put", "create"):
        with pytest.raises(StoreUnavailable, match="bucket"):
            may[name]()


def test_a_server_that_is_not_there_is_unavailable(s3):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    from deltavc.store.s3 import S3Store

    store = S3Store("bucket/x", s3.storage_options | {"client_kwargs": {"endpoint_url": endpoint}}, QUICK)
    with pytest.raises(StoreUnavailable):
        store.get("x")


def test_bad_storage_options_are_named(s3, url):
    with pytest.raises(StoreUnfit, match="no_such_option"):
        open_store(url, s3.storage_options | {"no_such_option": 1}).get("x")


def test_credentials_in_the_url_are_used_and_not_shown(s3, url, store):
    store.put("x", BODY)
    options = {"client_kwargs": s3.storage_options["client_kwargs"]}
    inside = open_store(url.replace("s3://", "s3://writer:writer-secret@"), options)
    assert inside.get("x") == BODY
    assert inside.url == url
    outside = open_store(url.replace("s3://", "s3://writer:hush-hush@"), options)
    with pytest.raises(StoreDenied) as caught:
        outside.get("x")
    assert "hush" not in f"{caught.value} {caught.value.facts()}"


# --- a faulty network ---


@pytest.mark.parametrize("fault", ["503", "reset", "lost"])
@pytest.mark.parametrize("name", ["get", "stat", "list", "put", "put_path", "delete"])
def test_what_fails_for_a_moment_is_tried_again(faulty, proxy, tmp_path, caplog, name, fault):
    faulty.put("x", BODY)
    operation = operations(faulty, tmp_path)[name]
    # aiohttp itself repeats once over a fresh connection, so one fault might never reach us.
    proxy.fail(fault, fault, fault)
    operation()
    assert any(record.name == "deltavc.store.retry" for record in caplog.records)


def test_half_an_answer_is_never_taken_for_the_object(faulty, proxy):
    faulty.put("x", BODY)
    proxy.fail("cut", "cut", method="GET")
    assert faulty.get("x") == BODY


def test_what_keeps_failing_ends_as_unavailable(faulty, proxy, tmp_path):
    faulty.put("x", BODY)
    proxy.fail_every(1, "503")
    for operation in operations(faulty, tmp_path).values():
        proxy.requests.clear()
        with pytest.raises(StoreUnavailable, match=r"SlowDown|503"):
            operation()
        assert len(proxy.requests) == QUICK.attempts


def test_a_create_whose_request_was_lost_creates(faulty, proxy):
    proxy.fail("503", "reset", "503")
    assert faulty.create("x", b"ours") is True


def test_a_create_whose_answer_was_lost_leaves_the_callers_own_bytes_to_be_found(faulty, proxy):
    proxy.fail("lost")
    assert faulty.create("x", b"ours") is False  # the price of trying again, which callers know
    assert faulty.get("x") == b"ours"


def test_a_listing_that_breaks_after_its_first_page_raises(store, faulty, proxy):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"many/{number:04}", b""), range(1001)))
    assert len(keys(store, "many/")) == 1001
    listing = faulty.list("many/")
    for _ in range(1000):
        next(listing)
    proxy.fail_every(1, "503")
    with pytest.raises(StoreUnavailable):
        list(listing)


# --- large files ---


@pytest.fixture
def large(tmp_path):
    """A file of 100 MiB and a bit, different in every part."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(25):
            file.write(secrets.token_bytes(1 << 10) * (4 << 10))
        file.write(b"the end")
    return path


def test_a_large_file_goes_up_and_comes_down_in_parts(store, large, tmp_path):
    store.put_path("large", large)
    nbytes = large.stat().st_size
    assert store.stat("large").nbytes == nbytes
    assert store.get("large", nbytes - 7) == b"the end"
    store.get_path("large", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == large.read_bytes()
    assert store.sweep(timedelta(0)) == 0


def test_single_parts_are_tried_again(faulty, proxy, large, tmp_path):
    with large.open("r+b") as file:
        file.truncate(40 << 20)
    proxy.fail_every(3, "503")
    faulty.put_path("large", large)
    puts = [path for method, path in proxy.requests if method == "PUT"]
    assert len(set(puts)) == 3  # and not the whole file each time
    assert 3 < len(puts) < 9
    faulty.get_path("large", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == large.read_bytes()


def test_an_upload_that_fails_is_aborted_and_shows_no_object(store, faulty, proxy, large):
    with large.open("r+b") as file:
        file.truncate(40 << 20)

    proxy.fail_every(1, "503", method="PUT")
    with pytest.raises(StoreUnavailable):
        faulty.put_path("large", large)
    assert keys(store) == []
    assert store.sweep(timedelta(0)) == 0  # nothing was left to abort


def test_stale_uploads_of_killed_writers_are_swept_and_young_ones_kept(store):
    store._call("start", "create_multipart_upload", "packs/large")
    store.put("packs/other", BODY)
    time.sleep(1.1)  # servers tell the time in seconds
    assert store.sweep() == 0
    assert store.sweep(timedelta(0)) == 1
    assert store.sweep(timedelta(0)) == 0
    assert keys(store) == ["packs/other"]


def test_sweeping_leaves_uploads_of_other_prefixes_alone(s3, bucket, store):
    other = open_store(f"{bucket}/{secrets.token_hex(8)}", s3.storage_options)
    other._call("start", "create_multipart_upload", "packs/large")
    time.sleep(1.1)
    assert store.sweep(timedelta(0)) == 0
    assert other.sweep(timedelta(0)) == 1


# --- processes ---


def test_a_store_works_in_a_forked_child_and_in_its_parent_after(store):
    store.put("x", BODY)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put((store.get("x"), store.create("y", b"child"))))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == (BODY, True)
    assert store.get("y") == b"child"


def test_first_use_by_many_threads_at_once_works(s3, store, url):
    store.put("x", BODY)
    fresh = open_store(url, s3.storage_options)
    start = threading.Barrier(8)

    def read(_):
        start.wait()
        return fresh.get("x")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {BODY}


def test_a_bucket_without_a_prefix_is_a_store(s3):
    store = open_store(s3.new_bucket(), s3.storage_options)
    store.put("a/x", BODY)
    assert keys(store) == ["a/x"]
    with pytest.raises(ObjectMissing):
        store.get("a/y")
