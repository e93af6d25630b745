"""Where a repository's objects are kept: one contract, several places.

    objects      what every store promises; open_store
    local        a directory
    memory       this process
    s3           a bucket; s3_errors: what its failures mean; retry: trying again
    cache        a local cache in front of a bucket
    probe        whether a store keeps the promises
    transfers    requests on threads
    files        files that appear whole or not at all
    urls         places without their secrets

fsspec and s3fs are imported when a bucket is opened, not before.
"""

from deltavc.store.cache import CachedStore
from deltavc.store.objects import ObjectInfo, Store, open_store
from deltavc.store.probe import probe
from deltavc.store.urls import locate, redact

__all__ = ["CachedStore", "ObjectInfo", "Store", "locate", "open_store", "probe", "redact"]
