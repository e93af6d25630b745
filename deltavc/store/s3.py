"""A store in an S3 bucket, through s3fs.

Each operation is one request, or one per part or page, and each request is tried again by one policy
(retry.py); the retries of s3fs and botocore are off. A file larger than a part is uploaded in parts of equal
size, as some servers want them, a few at a time.

`create` is a PUT with `If-None-Match: *`. If its answer is lost and the second try finds the object, it returns
False for the caller's own write: callers that must know compare what they wrote (the write id of a ref entry).
"""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import fsspec.asyn
import s3fs
from botocore.exceptions import BotoCoreError

from deltavc.errors import ObjectMissing, StoreError, StoreUnavailable, StoreUnfit
from deltavc.store.files import file_errors, replacing
from deltavc.store.objects import STALE, Body, ObjectInfo, check_key, check_prefix, check_range
from deltavc.store.retry import Retry
from deltavc.store.s3_errors import FAILURES, AlreadyThere, PastTheEnd, meaning
from deltavc.store.urls import redact

_log = logging.getLogger(__name__)

PART = 16 << 20
"""Bytes of a part, unless that made too many: large enough to keep a fast link busy, small enough to retry."""

MAX_PARTS = 10_000  # of one upload, by S3's rules
IN_FLIGHT = 4
"""Parts of one file on their way at once; memory for a transfer is this many parts."""

_CONFIG = {
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    "max_pool_connections": 64,  # with botocore's 10, readers on many threads wait for each other
    "read_timeout": 30,  # seconds without a byte; completing a large upload may take a server a while
}


class S3Store:
    """Objects below `prefix` in a bucket.

    Args:
        place: bucket, or bucket/prefix.
        options: what s3fs.S3FileSystem takes. Its `config_kwargs` win over ours, its `retries` do not.
        retry: how requests are tried again.
    """

    remote = True

    def __init__(self, place: str, options: Mapping[str, Any] | None = None, retry: Retry | None = None) -> None:
        self.url = f"s3://{place}"
        self._bucket, _, prefix = place.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = dict(options or {})
        self._retry = retry or Retry()
        self._clients: dict[int, s3fs.S3FileSystem] = {}
        self._locks: dict[int, threading.Lock] = {}

    def prepare(self) -> None:
        pass

    def sweep(self, older_than: timedelta = STALE) -> int:
        """Abort uploads in parts that nobody finished: their parts cost money and are seen by no listing."""
        before = self.now() - older_than
        stale = [upload for upload in self._uploads() if upload["Initiated"] < before]
        for upload in stale:
            self._abort(upload["Key"], upload["UploadId"])
        return len(stale)

    def now(self) -> datetime:
        answer = self._call("ask the time", "list_objects_v2", Prefix=self._prefix, MaxKeys=1)
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        check_range(start, nbytes)
        if nbytes == 0:  # HTTP has no range of no bytes
            self.stat(key)
            return b""
        end = "" if nbytes is None else start + nbytes - 1
        limits = {} if start == 0 and nbytes is None else {"Range": f"bytes={start}-{end}"}
        try:
            answer = self._call(f"get {key}", "get_object", key, **limits)
        except PastTheEnd:
            return b""
        body: bytes = answer["Body"]
        return body

    def put(self, key: str, body: Body) -> None:
        self._put(f"put {key}", key, body)

    def create(self, key: str, body: Body) -> bool:
        try:
            self._put(f"create {key}", key, body, IfNoneMatch="*")
        except AlreadyThere:
            return False
        return True

    def put_path(self, key: str, path: str | os.PathLike[str]) -> None:
        check_key(key)
        with file_errors(os.fspath(path), "reading"):
            source = open(path, "rb")  # noqa: SIM115 - its errors are not the store's
        with source:
            nbytes = os.fstat(source.fileno()).st_size
            if nbytes <= PART:
                self.put(key, _read(source, path, 0, nbytes))
            else:
                self._put_parts(key, source, path, nbytes)

    def get_path(self, key: str, path: str | os.PathLike[str]) -> None:
        nbytes = self.stat(key).nbytes
        target = os.fspath(path)
        with file_errors(target, "writing"), replacing(target) as file, ThreadPoolExecutor(IN_FLIGHT) as pool:

            def fetch(start: int) -> None:
                body = self.get(key, start, min(PART, nbytes - start))
                if len(body) != min(PART, nbytes - start):
                    raise StoreUnavailable(self.url, f"get {key}", "the object became shorter while it was read")
                os.pwrite(file.fileno(), body, start)

            for _ in pool.map(fetch, range(0, nbytes, PART)):
                pass

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                yield ObjectInfo(found["Key"].removeprefix(self._prefix), found["Size"], found["LastModified"])

    def prefixes(self, prefix: str = "") -> Iterator[str]:
        for page in self._pages(prefix, Delimiter="/"):
            for found in page.get("CommonPrefixes", ()):
                yield found["Prefix"].removeprefix(self._prefix)

    def stat(self, key: str) -> ObjectInfo:
        found = self._call(f"stat {key}", "head_object", key)
        return ObjectInfo(key, found["ContentLength"], found["LastModified"])

    def delete(self, key: str) -> None:
        try:
            self._call(f"delete {key}", "delete_object", key)
        except ObjectMissing:
            return

    def forget(self, key: str) -> None:
        pass

    def _pages(self, prefix: str, **how: str) -> Iterator[dict[str, Any]]:
        below = self._prefix + check_prefix(prefix)
        while True:
            page = self._call(f"list {prefix}", "list_objects_v2", Prefix=below, **how)
            yield page
            if not page.get("IsTruncated"):
                return
            how["ContinuationToken"] = page["NextContinuationToken"]

    def _put(self, operation: str, key: str, body: Body, **conditions: str) -> None:
        # As a file: aiohttp sends bare bytes in one go, with everybody else on its loop waiting.
        self._call(operation, "put_object", key, Body=partial(io.BytesIO, body), **conditions)

    def _put_parts(self, key: str, source: io.BufferedReader, path: str | os.PathLike[str], nbytes: int) -> None:
        operation = f"put {key}"
        size = max(PART, -(-nbytes // MAX_PARTS))
        upload = self._call(operation, "create_multipart_upload", key)["UploadId"]

        def send(number: int) -> dict[str, Any]:
            start = (number - 1) * size
            body = _read(source, path, start, min(size, nbytes - start))
            open_body = partial(io.BytesIO, body)
            sent = self._call(operation, "upload_part", key, UploadId=upload, PartNumber=number, Body=open_body)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        pool = ThreadPoolExecutor(IN_FLIGHT)
        try:
            parts = list(pool.map(send, range(1, -(-nbytes // size) + 1)))
            self._call(operation, "complete_multipart_upload", key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            pool.shutdown(cancel_futures=True)
            self._abort(self._prefix + key, upload)
            raise
        finally:
            pool.shutdown()

    def _uploads(self) -> Iterator[dict[str, Any]]:
        marker: dict[str, str] = {}
        while True:
            page = self._call("list uploads", "list_multipart_uploads", Prefix=self._prefix, **marker)
            yield from page.get("Uploads") or ()
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _abort(self, full_key: str, upload: str) -> None:
        try:
            self._call("abort an upload", "abort_multipart_upload", Key=full_key, UploadId=upload)
        except StoreError as error:
            # The upload's own error is the one to report; `sweep` comes back for the parts.
            _log.warning("%s", error)

    def _call(self, operation: str, method: str, key: str | None = None, **arguments: Any) -> Any:
        """Make one request, trying again what may pass. `Body` is a function that opens the body."""
        if key is not None:
            arguments["Key"] = self._prefix + check_key(key)
        return self._retry.run(partial(self._once, operation, method, key, arguments))

    def _once(self, operation: str, method: str, key: str | None, arguments: dict[str, Any]) -> Any:
        client = self._client()
        try:
            if "Body" in arguments:
                with arguments["Body"]() as body:
                    return client.call_s3(method, Bucket=self._bucket, **(arguments | {"Body": body}))
            answer = client.call_s3(method, Bucket=self._bucket, **arguments)
            if "Body" in answer:
                answer["Body"] = fsspec.asyn.sync(client.loop, _read_all, answer["Body"])
            return answer
        except FAILURES as error:
            raise meaning(error, self.url, operation, key) from error

    def _client(self) -> s3fs.S3FileSystem:
        """This process's client: one that was made before a fork does not work after it."""
        process = os.getpid()
        # A lock per process too: one that a thread of the parent held at the fork would never be released.
        with self._locks.setdefault(process, threading.Lock()):
            if process not in self._clients:
                self._clients[process] = self._connect()
            return self._clients[process]

    def _connect(self) -> s3fs.S3FileSystem:
        options = self._options | {
            "config_kwargs": _CONFIG | self._options.get("config_kwargs", {}),
            "skip_instance_cache": True,
            "use_listings_cache": False,
        }
        try:
            client = s3fs.S3FileSystem(**options)
            client.retries = 1  # tries in all; ours is the only policy
            client.connect()
        except (TypeError, ValueError, KeyError) as error:
            raise StoreUnfit(
                self.url, f"it cannot be opened with these storage options: {redact(str(error))}"
            ) from error
        except BotoCoreError as error:
            raise StoreUnavailable(self.url, "connecting", redact(str(error))) from error
        return client


async def _read_all(stream: Any) -> bytes:
    try:
        body: bytes = await stream.read()
        return body
    finally:
        stream.close()


def _read(source: io.BufferedReader, path: str | os.PathLike[str], start: int, nbytes: int) -> bytes:
    """Read a part of a file that must not change while it is uploaded."""
    with file_errors(os.fspath(path), "reading"):
        body = os.pread(source.fileno(), nbytes, start)
    if len(body) != nbytes:
        raise StoreUnavailable(os.fspath(path), "reading", "the file became shorter while it was read")
    return body
