"""What the failures of S3 and of the network under it mean.

Servers differ in their codes more than in their HTTP statuses, so known codes decide first and statuses after.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from deltavc.errors import ObjectMissing, StoreDenied, StoreFull, StoreUnavailable, StoreUnfit
from deltavc.store.retry import Transient
from deltavc.store.urls import redact

FAILURES = (OSError, BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError)
"""Everything that a request may raise; anything else is a mistake of ours."""

_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, TokenRetrievalError, UnauthorizedSSOTokenError)
_NETWORK = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    ResponseParserError,  # an answer cut short, or a proxy's page in place of S3's XML
    aiohttp.ClientError,
    OSError,
)

_DENIED = {
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_FULL = {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"}
_PASSING = {
    "ConditionalRequestConflict",  # another conditional write of the same key is under way: ask again
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentSHA256Mismatch",  # damaged on the way
}


class AlreadyThere(Exception):
    """The condition of a conditional write did not hold."""


class PastTheEnd(Exception):
    """A range that starts beyond the end of its object."""


def meaning(error: BaseException, url: str, operation: str, key: str | None) -> Exception:
    """Return the error to raise for `error`: a StoreError, Transient, AlreadyThere or PastTheEnd.

    Args:
        error: one of FAILURES, as s3fs raises it: an OSError made from botocore's error, which is its cause.
        url: the store, without credentials.
        operation: what was tried, as errors name it.
        key: the object in question, if it was one.
    """
    answer = error if isinstance(error, ClientError) else error.__cause__
    if isinstance(answer, ClientError):
        return _answered(answer.response, url, operation, key)
    reason = redact(str(error) or type(error).__name__)
    if isinstance(error, _CREDENTIALS):
        return StoreDenied(url, operation, reason)
    unavailable = StoreUnavailable(url, operation, reason)
    return Transient(unavailable) if isinstance(error, _NETWORK) else unavailable


def _answered(response: Any, url: str, operation: str, key: str | None) -> Exception:
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") or (int(code) if code.isdigit() else 0)
    reason = redact(f"{code or status} {error.get('Message', '')}".strip())
    unavailable = StoreUnavailable(url, operation, reason)
    if code == "PreconditionFailed" or status == 412:
        return AlreadyThere(reason)
    if code == "InvalidRange" or status == 416:
        return PastTheEnd(reason)
    if code == "NoSuchBucket":
        return StoreUnavailable(url, operation, "there is no such bucket")
    if code in _DENIED or status in (401, 403):
        return StoreDenied(url, operation, reason)
    if code in _FULL or status == 507:
        return StoreFull(url, operation)
    if code in _PASSING or status in (408, 409, 425, 429):
        return Transient(unavailable)
    if code == "NotImplemented" or status == 501:
        return StoreUnfit(url, f"it does not implement {operation} ({reason})")
    if status >= 500:
        return Transient(unavailable)
    if status == 404 and key is not None and code in ("NoSuchKey", "404", "NotFound"):
        return ObjectMissing(key)
    return unavailable
