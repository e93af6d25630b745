"""How long does it take to fill a database anew from the bucket, and how many requests?

Writes the records of one branch of N versions into a local directory: for each a version, an edge (40 tensors changed)
and a move of the branch, with a step, a loss and a reward; a snapshot every 1,000. Then fills an empty database from
it in a process of its own: from the first tenth of the records one by one, and from all of them with a bundle, as
`compact` writes it. There are no packs: reindexing reads none. Requests are counted as S3 would: a listing is one for
every 1,000 keys.

    python bench/reindex.py [--versions 100000] [--directory DIR]
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path

from deltavc import canonical
from deltavc.canonical import content_id
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage import bundles, schema
from deltavc.lineage.database import open_database
from deltavc.lineage.index import Index
from deltavc.lineage.records import EdgeRecord, PackUse, RefEntry, VersionRecord, layout_key, version_key
from deltavc.opening import MARKER
from deltavc.repo import Repo
from deltavc.store.objects import open_store

LAYOUT = Layout.of([TensorSpec(f"layers.{number}.weight", "bfloat16", (1000, 1000)) for number in range(40)])
SNAPSHOT_EVERY = 1000
ID = "0" * 32
PLACES = tuple(range(40))


class Counting:
    """A store that counts what it is asked, as an object store would bill it."""

    def __init__(self, store):
        self._store = store
        self.requests = 0

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name in ("list", "prefixes"):
            return lambda *args: self._listing(found(*args))
        if name not in ("get", "put", "create", "stat", "delete"):
            return found

        def call(*args):
            self.requests += 1
            return found(*args)

        return call

    def _listing(self, keys):
        self.requests += 1
        for number, key in enumerate(keys, 1):
            yield key
            self.requests += number % 1000 == 0


def write(root, num_versions):
    """Objects as commits would have put them, without bringing each to the disk."""

    def put(key, body):
        path = os.path.join(root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(body)

    put(MARKER, canonical.sealed({"format": 1, "repository": ID}))
    put(layout_key(LAYOUT.id), LAYOUT.body)
    before = None
    for number in range(num_versions):
        when = f"2026-01-02T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.{number:06d}Z"
        version = VersionRecord(
            parents=(before,) if before else (),
            layout=LAYOUT.id,
            fingerprint=content_id(b"weights %d" % number),
            step=number,
            message=f"step {number}",
            author="trainer",
            time=when,
            metrics={"loss": 1 / (number + 1), "reward": number / num_versions},
        )
        put(version_key(version.id), version.body)
        fingerprints = tuple(content_id(b"%d %d" % (number, place))[:16] for place in PLACES)
        for base in {before, None if number % SNAPSHOT_EVERY == 0 else before}:
            nbytes = 3_000_000 if base else 60_000_000
            pack = PackUse(content_id(f"{base} {number}".encode()), nbytes, (nbytes - 9000, 8000, 20_000))
            edge = EdgeRecord(
                base=base,
                target=version.id,
                layout=LAYOUT.id,
                base_layout=LAYOUT.id if base else None,
                packs=(pack,),
                changed=PLACES,
                fingerprints=fingerprints,
                reversible=base is not None,
                nbytes=nbytes,
                changes=200_000 if base else 40_000_000,
            )
            put(edge.key, edge.body)
        move = RefEntry("branches/main", number + 1, before, version.id, "trainer", when, "commit", f"{number:032x}")
        put(move.key, move.body)
        before = version.id


def write_bundles(root, num_versions):
    """Bundle all records; sizes of the bundles."""
    store = open_store(root)
    keys = (item.key for prefix in ("layouts/", "versions/", "edges/", "refs/") for item in store.list(prefix))
    made = list(bundles.pack(((key, store.get(key)) for key in keys), num_versions))
    for body in made:
        store.put(bundles.bundle_key(body), body)
    return [len(body) for body in made]


def fill(root, database):
    """In a process of its own: fill a database. Seconds, those of a core, requests, versions, and memory in MB."""
    store = Counting(open_store(root))
    engine = open_database(database)
    schema.prepare(engine)
    repo = Repo(store, Index(engine, store, ID), ID)
    repo._access(1 << 28)  # which imports torch
    before = resource.getrusage(resource.RUSAGE_SELF)
    started, store.requests = time.perf_counter(), 0
    num_versions = repo.reindex().num_versions
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    of_a_core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, of_a_core, store.requests, num_versions, (after.ru_maxrss - before.ru_maxrss) / 1024


def measure(what, root, database):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, of_a_core, requests, num_versions, memory = pool.apply(fill, (root, database))
    size = Path(database.removeprefix("sqlite:///")).stat().st_size / 1e6
    each = of_a_core / num_versions * 1e3
    print(
        f"{what:<14}{num_versions:>9,} versions {seconds:8.1f} s, {each:.2f} ms of a core each, "
        f"{requests:>8,} requests, {memory:,.0f} MB more memory, a database of {size:,.0f} MB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=100_000)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        few, all_of_them = os.path.join(directory, "few"), os.path.join(directory, "all")
        write(few, arguments.versions // 10)
        measure("one by one", few, f"sqlite:///{directory}/few.db")
        write(all_of_them, arguments.versions)
        nbytes = write_bundles(all_of_them, arguments.versions)
        print(f"{len(nbytes)} bundles of {sum(nbytes) / 1e6:,.0f} MB in all")
        measure("with a bundle", all_of_them, f"sqlite:///{directory}/all.db")


if __name__ == "__main__":
    main()
