"""Bundles: many records with few requests, and nothing that the bucket itself does not vouch for."""

import secrets

import pytest

from deltavc import canonical
from deltavc.errors import BadPayload, ObjectMissing
from deltavc.lineage import bundles, export, index
from deltavc.lineage.drops import DropRecord
from deltavc.lineage.records import ref_entry_key, version_key
from deltavc.store import open_store
from tests.lineage import samples
from tests.lineage.test_refs import Counted


@pytest.fixture
def bucket():
    return open_store(f"memory://{secrets.token_hex(8)}")


def grown(bucket, length, branches):
    """A bucket with this many versions on each branch, one after another."""
    writers = [samples.Writer(bucket, f"branches/{number}") for number in range(branches)]
    made = [writer.commit(step=step, snapshot=step % 100 == 0).id for step in range(length) for writer in writers]
    writers[0].move(made[0], "rollback")
    return made


def filled(bucket):
    found = samples.open_index("sqlite://", bucket)
    found.catch_up_all()
    return found


def bundle_up(bucket, full):
    for body in bundles.pack(export.records(full), export.num_moves(full)):
        bucket.put(bundles.bundle_key(body), body)


@pytest.fixture(scope="module")
def line():
    """Everything in a bucket of 601 moves, and the rows of a database that read it one by one."""
    bucket = open_store(f"memory://{secrets.token_hex(8)}")
    grown(bucket, 300, branches=2)
    full = filled(bucket)
    return {item.key: bucket.get(item.key) for item in bucket.list("")}, samples.contents(full), full


@pytest.fixture
def bundled_line(bucket, line):
    objects, rows, full = line
    for key, body in objects.items():
        bucket.put(key, body)
    bundle_up(bucket, full)
    return bucket, rows


def test_records_come_out_as_they_went_in(monkeypatch, line):
    monkeypatch.setattr(bundles, "PART_BYTES", 50_000)
    objects, _, full = line
    parts = list(bundles.pack(export.records(full), export.num_moves(full)))
    assert len(parts) > 5
    found = {key: body for part in parts for key, body in bundles.unpack(bundles.bundle_key(part), part)}
    assert found == {key: body for key, body in objects.items() if key.endswith(".json")}
    assert [bundles.entries_of(part[: bundles.HEAD_BYTES]) for part in parts] == [0] * (len(parts) - 1) + [601]


def test_a_new_database_reads_them_with_few_requests(bundled_line, monkeypatch):
    monkeypatch.setattr(index, "_MANY", 1)
    bucket, rows = bundled_line
    counted = Counted(bucket)
    assert samples.contents(filled(counted)) == rows
    assert counted.reads < 256 * 7  # the first batch is read one by one


def test_what_happened_since_is_seen(bundled_line, monkeypatch):
    monkeypatch.setattr(index, "_MANY", 1)
    bucket, _ = bundled_line
    writer = samples.Writer(bucket, "branches/1")
    new = [writer.commit(step=step).id for step in range(5)]
    samples.Writer(bucket, "tags/t").move(new[0])
    full = filled(bucket)
    dropped = [edge for version in full.log(None, 400) for edge in full.edges_into(version.id)][::7]
    for edge in dropped:
        drop = DropRecord.of(edge, "me", "expire")
        bucket.put(drop.key, drop.body)
    for edge in dropped[::2]:
        bucket.delete(edge.key)
    found = filled(bucket)
    assert found.head("branches/1").new == new[-1]
    expected = samples.open_index("sqlite://", bucket)
    monkeypatch.setattr(index, "_MANY", 1 << 60)
    expected.catch_up_all()
    assert samples.contents(found) == samples.contents(expected)


@pytest.mark.parametrize("how", ["cut", "flipped", "not zstd", "renamed", "bomb", "no lines", "gone"])
def test_a_damaged_bundle_is_as_good_as_none(bundled_line, monkeypatch, how):
    monkeypatch.setattr(index, "_MANY", 1)
    bucket, rows = bundled_line
    [item] = bucket.list(bundles.BUNDLES)
    body = bucket.get(item.key)
    bad = {
        "cut": body[:-100],
        "flipped": body[:1000] + bytes([body[1000] ^ 1]) + body[1001:],
        "not zstd": b"{}",
        "renamed": body + b"\0",
        "bomb": __import__("zstandard").compress(bytes(300 << 20)),
        "no lines": bundles._packed([b"x", b"", b"refs/ ", b"refs/a/b {}", b"\xff\xff y"], 3),
        "gone": body,
    }[how]
    bucket.delete(item.key)
    key = item.key if how in ("cut", "flipped") else bundles.bundle_key(bad)
    bucket.put(key, bad)
    if how == "gone":

        class Gone(Counted):
            def get(self, key, *limits):
                if key.startswith(bundles.BUNDLES):
                    raise ObjectMissing(key)
                return super().get(key, *limits)

        bucket = Gone(bucket)
    elif how != "no lines":
        with pytest.raises(BadPayload):
            list(bundles.unpack(key, bad))
    assert samples.contents(filled(bucket)) == rows


def test_a_bundle_that_lies_is_believed_in_nothing(bucket, monkeypatch):
    monkeypatch.setattr(index, "_MANY", 1)
    grown(bucket, 150, branches=2)
    full = filled(bucket)
    rows = samples.contents(full)
    other = open_store(f"memory://{secrets.token_hex(8)}")
    strange = samples.Writer(other, "branches/0")
    lies = [strange.commit() for _ in range(350)]
    ids = [version.id for version in full.log(None)]
    records = [(key, body) for key, body in export.records(full) if not key.startswith("refs/")]
    records += [(version_key(ids[0]), full.version(ids[1]).record.body)]  # one version under another's name
    records += [(version_key(lie.id), lie.version.body) for lie in lies]  # never committed here
    records += [(edge.key, edge.body) for lie in lies for edge in lie.edges]
    records += [(samples.edge(ids[5], ids[4]).key, samples.edge(ids[5], ids[4]).body)]  # not in the bucket
    records += [(lie.entry.key, lie.entry.body) for lie in lies]  # moves that branch 0 never made
    for body in bundles.pack(records, 5):
        bucket.put(bundles.bundle_key(body), body)
    assert samples.contents(filled(bucket)) == rows


def test_moves_behind_a_gap_are_read_from_the_bucket(bucket, monkeypatch):
    monkeypatch.setattr(index, "_MANY", 1)
    grown(bucket, 300, branches=1)
    full = filled(bucket)
    left_out = ref_entry_key("branches/0", 280)
    for body in bundles.pack(((key, body) for key, body in export.records(full) if key != left_out), 5):
        bucket.put(bundles.bundle_key(body), body)
    counted = Counted(bucket)
    assert samples.contents(filled(counted)) == samples.contents(full)
    assert counted.reads < 256 * 7


def test_a_bundle_says_at_its_beginning_how_much_it_holds():
    assert bundles.entries_of(b"") == bundles.entries_of(b"nonsense") == 0
    assert bundles.entries_of(bundles._packed([], 7)) == 7
    long = [canonical.dumps({"x": secrets.token_hex(50_000)}) for _ in range(100)]
    assert bundles.entries_of(bundles._packed(long, 9)[: bundles.HEAD_BYTES]) == 9
