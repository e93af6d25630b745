"""Errors of object stores."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class StoreError(DeltavcError):
    """The object store did not do what it was asked."""


@dataclass(eq=False)
class ObjectMissing(StoreError):
    """There is no object under this key. A plain fact, not yet a corruption."""

    key: str

    kind = "object_missing"

    def __str__(self) -> str:
        return f"there is no object {self.key}"


@dataclass(eq=False)
class StoreDenied(StoreError):
    """The store refuses: credentials or permissions."""

    url: str
    operation: str
    reason: str

    kind = "store_denied"
    hint = (
        "For S3, check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they permit on the bucket; "
        "for a directory, its owner, and whether its disk can be written."
    )

    def __str__(self) -> str:
        return f"{self.url} denies {self.operation}: {self.reason}"


@dataclass(eq=False)
class StoreUnavailable(StoreError):
    """The store cannot be reached, or kept failing."""

    url: str
    operation: str
    reason: str

    kind = "store_unavailable"
    hint = "Check the address (for S3 also the bucket and endpoint_url) and the network or disk, and try again."

    def __str__(self) -> str:
        return f"{self.url} is unavailable for {self.operation}: {self.reason}"


@dataclass(eq=False)
class StoreFull(StoreError):
    """No room left on the device or in the quota."""

    url: str
    operation: str

    kind = "store_full"
    hint = "Free some room and try again; nothing half written was left behind."

    def __str__(self) -> str:
        return f"{self.url} has no room left for {self.operation}"


@dataclass(eq=False)
class StoreUnfit(StoreError):
    """The store lacks something that deltavc relies on."""

    url: str
    reason: str

    kind = "store_unfit"
    hint = (
        "Take a place that is fit: a directory on a file system with hard links, or a prefix of an S3 bucket "
        "that honours create-if-absent (If-None-Match: * on PUT)."
    )

    def __str__(self) -> str:
        return f"{self.url} cannot hold a repository: {self.reason}"
