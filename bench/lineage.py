"""How long does a question about a million versions take?

Fills a SQLite database with one branch of N versions: a reversible edge each (40 tensors changed, 3 MB, 200,000
lanes), a snapshot (500 MB) every 1,000, a step, a loss and a reward each, one ref entry each; then asks. Times are
medians of 9 after a first one, which is shown too.

    python bench/lineage.py [--versions 1000000] [--directory DIR]
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from sqlalchemy import insert

from deltavc.canonical import content_id
from deltavc.errors import ObjectMissing
from deltavc.lineage import schema
from deltavc.lineage.database import open_database, writing
from deltavc.lineage.index import Index
from deltavc.lineage.plan import plan
from deltavc.lineage.records import EdgeRecord, PackUse
from deltavc.lineage.resolve import resolve
from deltavc.lineage.tables import edges, layouts, metrics, parents, ref_entries, refs, versions

CHAIN = 1000
ROWS = 20_000


class NothingNew:
    """A bucket in which nothing was added since: only the database is measured."""

    def list(self, prefix):
        return iter(())

    prefixes = list

    def get(self, key, start=0, nbytes=None):
        raise ObjectMissing(key)


def version_id(number):
    return content_id(b"version %d" % number)


def edge_bodies():
    """Returns a function from base and target to the body of an edge between them."""
    source = random.Random(1)
    blank = "0" * 64
    changed = tuple(range(40))
    fingerprints = tuple(f"{source.getrandbits(64):016x}" for _ in changed)
    uses = (PackUse(content_id(b"pack"), 3_000_000, (2_990_000, 9_000, 20_000)),)
    layout = content_id(b"layout")
    edge = EdgeRecord(blank, "1" * 64, layout, layout, uses, changed, fingerprints, True, 3_000_000, 200_000)
    snapshot = EdgeRecord(None, "1" * 64, layout, None, uses, changed, fingerprints, False, 500_000_000, 400_000_000)

    def body(base, target):
        text = (edge if base else snapshot).body.replace(b"1" * 64, target.encode())
        return text.replace(blank.encode(), (base or blank).encode())

    return body


def fill(engine, num_versions):
    """One branch, as `ingest` would have written it."""
    source = random.Random(2)
    body = edge_bodies()
    jumps, jump_depths = [0], [0]
    rows = {table: [] for table in (versions, parents, metrics, edges, ref_entries)}
    with writing(engine) as db:
        layout = {"pk": 1, "id": content_id(b"layout"), "num_lanes": 400_000_000, "nbytes": 800_000_000, "body": b""}
        db.execute(insert(layouts).values(layout))
        db.execute(insert(refs).values(name="branches/main", sequence=0, version=None))
        before = None
        for number in range(num_versions):
            pk, target = number + 1, version_id(number)
            if number:
                over = jumps[number - 1]
                if (number - 1) - jump_depths[number - 1] == jump_depths[number - 1] - jump_depths[over]:
                    jumps.append(jumps[over])
                else:
                    jumps.append(number - 1)
                jump_depths.append(jumps[number])
                rows[parents].append({"version": pk, "place": 0, "parent": number})
            rows[versions].append(
                {
                    "pk": pk,
                    "id": target,
                    "parent": number or None,
                    "depth": number,
                    "jump": jumps[number] + 1,
                    "jump_depth": jump_depths[number],
                    "clock": number * 1_000_000,
                    "layout": 1,
                    "fingerprint": content_id(b"weights %d" % number),
                    "step": number,
                    "message": f"step {number}",
                    "author": "trainer",
                    "time": "2026-01-02T03:04:05.678901Z",
                    "meta": "{}",
                    "files": "{}",
                    "source": None,
                    "new_file_bytes": 0,
                }
            )
            for name in ("loss", "reward"):
                rows[metrics].append({"version": pk, "name": name, "value": source.random(), "special": None})
            for base in [before] * (number > 0) + [None] * (number % CHAIN == 0):
                rows[edges].append(
                    {
                        "pk": number + 1 if base else num_versions + number + 1,
                        "id": content_id(f"{base} {target}".encode()),
                        "base": number if base else None,
                        "target": pk,
                        "reversible": base is not None,
                        "nbytes": 3_000_000 if base else 500_000_000,
                        "changes": 200_000 if base else 400_000_000,
                        "origin": "commit",
                        "new_bytes": 3_000_000,
                        "body": body(base, target),
                    }
                )
            rows[ref_entries].append(
                {
                    "ref": "branches/main",
                    "sequence": pk,
                    "old": number or None,
                    "new": pk,
                    "who": "trainer",
                    "moved_at": "2026-01-02T03:04:05.678901Z",
                    "why": "commit",
                    "write_id": "0" * 32,
                }
            )
            before = target
            if pk % ROWS == 0 or pk == num_versions:
                for table, pending in rows.items():
                    db.execute(insert(table), pending)
                    pending.clear()
        db.execute(refs.update().values(sequence=num_versions, version=num_versions))


def ask(question, call):
    times = []
    for _ in range(10):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    print(f"{question:<50}{statistics.median(times[1:]):9.1f} ms {times[0]:12.1f} ms first", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    count = arguments.versions
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        file = Path(directory, "lineage.db")
        engine = open_database(f"sqlite:///{file}")
        schema.prepare(engine)
        start = time.perf_counter()
        fill(engine, count)
        seconds = time.perf_counter() - start
        print(f"{count:,} versions in {seconds:.0f} s, {file.stat().st_size / 1e6:,.0f} MB\n")
        index = Index(engine, NothingNew(), "bench")
        head = version_id(count - 1)
        far = version_id(count // CHAIN // 2 * CHAIN - 1)
        ask("log -n 20", lambda: list(index.log([head], 20)))
        ask("log -n 20 --all", lambda: list(index.log(None, 20)))
        ask(
            "log -n 20 of the last tenth (A..B)",
            lambda: list(index.log([head], 20, exclude=[version_id(count - count // 10)])),
        )
        ask("plan, 999 edges from its snapshot", lambda: plan(index, far, forward_only=True))
        ask("plan, one edge back from the next", lambda: plan(index, far))
        ask(
            "plan, 400 edges from what is held",
            lambda: plan(index, far, held=[version_id(count // CHAIN // 2 * CHAIN - 401)]),
        )
        ask(f"main~{count // 2}", lambda: resolve(index, f"main~{count // 2}"))
        ask(f"step:{count // 3}", lambda: resolve(index, f"step:{count // 3}"))
        ask("best:loss", lambda: resolve(index, "best:loss"))
        ask("best:reward", lambda: resolve(index, "best:reward"))
        ask("a prefix of 10 digits", lambda: resolve(index, far[:10]))
        engine.dispose()


if __name__ == "__main__":
    main()
