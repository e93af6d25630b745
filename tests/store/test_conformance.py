"""The conformance suite against every store."""

import secrets
from functools import partial

import pytest

from deltavc.store import CachedStore, open_store
from deltavc.store.retry import Retry
from tests.store.conformance import Conformance


class TestLocal(Conformance):
    @pytest.fixture
    def store(self, tmp_path):
        self.reopen = partial(open_store, tmp_path / "store")
        store = self.reopen()
        store.prepare()
        return store


class TestMemory(Conformance):
    @pytest.fixture
    def store(self):
        return open_store(f"memory://{secrets.token_hex(8)}")


@pytest.mark.servers
class TestS3(Conformance):
    @pytest.fixture
    def store(self, s3, bucket):
        self.reopen = partial(open_store, f"{bucket}/{secrets.token_hex(8)}/repo", s3.storage_options)
        return self.reopen()


class TestCached(Conformance):
    """Over a directory: the cache does not ask where the store behind it is."""

    @pytest.fixture
    def store(self, tmp_path):
        self.reopen = partial(open_store, tmp_path / "store")
        store = CachedStore(self.reopen(), tmp_path / "cache", 1 << 20)
        store.prepare()
        return store


@pytest.mark.long
@pytest.mark.servers
class TestS3OverAFaultyNetwork(Conformance):
    @pytest.fixture
    def store(self, s3, bucket, proxy):
        from deltavc.store.s3 import S3Store

        place = f"{bucket.removeprefix('s3://')}/{secrets.token_hex(8)}"
        proxy.fail_every(3, "503", "reset")
        return S3Store(place, proxy.options(s3.storage_options), Retry(attempts=20, first_wait=0.001))


@pytest.fixture(scope="module")
def bucket(s3):
    return s3.new_bucket()
