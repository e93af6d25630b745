"""Stores for tests, and a faulty network in front of a real S3 server."""

import pytest

pytest.register_assert_rewrite("tests.store.conformance")

from tests.store.faults import FaultProxy  # noqa: E402


@pytest.fixture
def proxy(s3):
    with FaultProxy(s3.endpoint) as running:
        yield running
