from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltavc.errors import (
    BadRefName,
    BranchMoved,
    CommitInDoubt,
    CorruptObject,
    MissingObject,
    RefExists,
    StoreDenied,
    StoreUnavailable,
)
from deltavc.lineage.names import branch_ref, check_name, tag_ref
from deltavc.lineage.records import ref_entry_key, ref_hint_key
from deltavc.lineage.refs import Refs

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
MAIN = "branches/main"


class Counted:
    """A bucket that counts what is read from it."""

    def __init__(self, bucket):
        self._bucket = bucket
        self.reads = 0

    def get(self, key, *limits):
        self.reads += 1
        return self._bucket.get(key, *limits)

    def list(self, prefix):
        self.reads += 1
        return self._bucket.list(prefix)

    def prefixes(self, prefix):
        self.reads += 1
        return self._bucket.prefixes(prefix)

    def __getattr__(self, name):
        return getattr(self._bucket, name)


class Flaky:
    """A bucket whose calls fail, by number, before they land or after they have."""

    def __init__(self, bucket, failures, landed):
        self._bucket = bucket
        self._failures = set(failures)
        self._landed = landed
        self._calls = 0

    def get(self, key, *limits):
        return self._call(self._bucket.get, key, *limits)

    def create(self, key, body):
        return self._call(self._bucket.create, key, body)

    def put(self, key, body):
        return self._call(self._bucket.put, key, body)

    def list(self, prefix):
        return self._bucket.list(prefix)

    def _call(self, call, *arguments):
        self._calls += 1
        if self._calls not in self._failures:
            return call(*arguments)
        if self._landed:
            call(*arguments)
        raise StoreUnavailable("x://", "call", "lost")


def grow(bucket, count, ref=MAIN):
    refs, entry, entries = Refs(bucket), None, []
    for number in range(count):
        entry = refs.move(ref, entry, f"{number:064x}", "me", "why")
        entries.append(entry)
    return entries


def test_a_ref_that_never_was_has_no_newest_entry(bucket):
    assert Refs(bucket).newest(MAIN) is None
    assert list(Refs(bucket).entries(MAIN)) == []
    assert Refs(bucket).names() == []


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_all_ways_of_reading_a_ref_agree(bucket, count):
    entries = grow(bucket, count)
    refs = Refs(bucket)
    assert refs.newest(MAIN) == entries[-1]
    assert list(refs.entries(MAIN)) == entries
    for known in entries:
        assert refs.newest(MAIN, known) == entries[-1]
        assert list(refs.entries(MAIN, known)) == entries[known.sequence :]


def test_asking_whether_anything_is_new_costs_one_request(bucket):
    entries = grow(bucket, 9)
    counted = Counted(bucket)
    Refs(counted).newest(MAIN, entries[-1])
    assert counted.reads == 1
    list(Refs(counted).entries(MAIN, entries[-1]))
    assert counted.reads == 2
    Refs(counted).newest(MAIN)  # the hint, its entry, the one after
    assert counted.reads == 5


@pytest.mark.parametrize("hint", [b"", b"0", b"3", b"9", b"99", b"-1", b"nonsense", b"9" * 400])
def test_a_wrong_hint_changes_nothing(bucket, hint):
    entries = grow(bucket, 9)
    bucket.put(ref_hint_key(MAIN), hint)
    assert Refs(bucket).newest(MAIN) == entries[-1]


def test_a_missing_hint_changes_nothing(bucket):
    entries = grow(bucket, 9)
    bucket.delete(ref_hint_key(MAIN))
    assert Refs(bucket).newest(MAIN) == entries[-1]


def test_a_lost_entry_is_named(bucket):
    entries = grow(bucket, 5)
    bucket.delete(entries[2].key)
    bucket.delete(ref_hint_key(MAIN))
    with pytest.raises(MissingObject) as caught:
        Refs(bucket).newest(MAIN)
    assert caught.value.key == entries[2].key


def test_a_damaged_entry_is_named(bucket):
    entries = grow(bucket, 5)
    for body in (b"", entries[4].body[:-1], entries[4].body + b" ", entries[3].body):
        bucket.put(entries[4].key, body)
        with pytest.raises(CorruptObject) as caught:
            list(Refs(bucket).entries(MAIN))
        assert caught.value.key == entries[4].key


def test_an_entry_that_does_not_go_on_from_the_last_is_corrupt(bucket):
    refs = Refs(bucket)
    first = refs.move(MAIN, None, A, "me", "why")
    bucket.put(
        ref_entry_key(MAIN, 2), refs.next_entry(MAIN, None, B, "me", "x").body.replace(b'sequence":1', b'sequence":2')
    )
    with pytest.raises(CorruptObject):
        list(refs.entries(MAIN, first))


def test_moving_from_an_old_head_tells_where_the_branch_is(bucket):
    refs = Refs(bucket)
    first = refs.move(MAIN, None, A, "me", "why")
    refs.move(MAIN, first, B, "me", "why")
    with pytest.raises(BranchMoved) as caught:
        refs.move(MAIN, first, C, "me", "why")
    assert (caught.value.branch, caught.value.expected, caught.value.found) == ("main", A, B)
    assert refs.newest(MAIN).new == B


def test_a_tag_is_made_once_until_it_is_deleted(bucket):
    refs = Refs(bucket)
    first = refs.move("tags/v1", None, A, "me", "why")
    with pytest.raises(RefExists) as caught:
        refs.move("tags/v1", None, B, "me", "why")
    assert (caught.value.name, caught.value.at) == ("v1", A)
    gone = refs.move("tags/v1", first, None, "me", "why")
    again = refs.move("tags/v1", gone, B, "me", "why")
    assert (again.sequence, again.old, again.new) == (3, None, B)


def test_names_lists_every_ref_that_ever_was(bucket):
    entries = [grow(bucket, 3, ref)[-1] for ref in ("branches/b", "branches/a/b", "tags/t")]
    Refs(bucket).move("tags/t", entries[2], None, "me", "why")
    assert Refs(bucket).names() == ["branches/a/b", "branches/b", "tags/t"]
    assert Refs(bucket).names(known=["tags/t"]) == ["branches/a/b", "branches/b", "tags/t"]


def test_finding_names_costs_an_entry_a_ref_and_passes_over_what_is_no_ref(bucket):
    for number in range(5):
        grow(bucket, 10, f"branches/{number}")
    bucket.put("refs/notes/x.json", b"{}")
    bucket.put(ref_hint_key("branches/none"), b"7")
    counted = Counted(bucket)
    assert len(Refs(counted).names(known=["branches/1"])) == 5
    assert counted.reads == 1 + 4 + 2  # the prefixes, the names, and a look at what has only a hint
    bucket.delete(ref_entry_key("branches/3", 1))
    with pytest.raises(MissingObject):
        Refs(bucket).names()


def test_reading_a_ref_from_its_start_notices_a_gap_and_warns_of_a_lost_end(bucket, caplog):
    entries = grow(bucket, 9)
    refs = Refs(bucket)
    bucket.delete(ref_entry_key(MAIN, 9))
    assert list(refs.entries(MAIN)) == entries[:8]
    assert ref_entry_key(MAIN, 9) in caplog.text
    bucket.put(ref_entry_key(MAIN, 9), entries[8].body)
    for number in (1, 5, 8):
        bucket.delete(ref_entry_key(MAIN, number))
        with pytest.raises(MissingObject, match=f"{number:012d}"):
            list(refs.entries(MAIN))
        bucket.put(ref_entry_key(MAIN, number), entries[number - 1].body)
    assert list(refs.entries(MAIN)) == entries


def test_an_entry_created_while_the_hint_is_read_is_no_gap(bucket):
    entries = grow(bucket, 3)
    bucket.delete(ref_entry_key(MAIN, 3))

    class Late(Counted):
        def get(self, key, *limits):
            if key == ref_hint_key(MAIN):
                self._bucket.put(ref_entry_key(MAIN, 3), entries[2].body)
            return super().get(key, *limits)

    assert list(Refs(Late(bucket)).entries(MAIN)) == entries


def test_threads_that_race_make_one_line(bucket):
    def run(worker):
        refs, known, moved, lost = Refs(bucket), None, [], 0
        while len(moved) < 10:
            known = refs.newest(MAIN, known)
            try:
                known = refs.move(MAIN, known, f"{worker:032x}{len(moved):032x}", str(worker), "race")
                moved.append(known)
            except BranchMoved:
                lost += 1
        return moved, lost

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    entries = list(Refs(bucket).entries(MAIN))  # checks that each goes on from the one before
    assert sorted(entries, key=lambda entry: entry.write_id) == sorted(
        (entry for moved, _ in results for entry in moved), key=lambda entry: entry.write_id
    )


@pytest.mark.parametrize("landed", [False, True], ids=["lost-request", "lost-response"])
@pytest.mark.parametrize("failures", [[1], [2], [1, 2], [1, 3], [1, 2, 3]])
def test_a_move_whose_answer_is_lost_is_made_once(bucket, failures, landed):
    refs = Refs(Flaky(bucket, failures, landed))
    entry = refs.next_entry(MAIN, None, A, "me", "why")
    try:
        refs.create(entry)
    except CommitInDoubt:
        assert failures == [1, 2, 3]
        assert refs.settle(entry) is True
    assert list(Refs(bucket).entries(MAIN)) == [entry]


@pytest.mark.parametrize("failures", [[1], [2], [1, 2], [1, 2, 3]])
def test_a_move_that_lost_the_race_is_not_taken_for_ours(bucket, failures):
    theirs = Refs(bucket).move(MAIN, None, B, "them", "why")
    refs = Refs(Flaky(bucket, failures, landed=True))
    entry = refs.next_entry(MAIN, None, A, "me", "why")
    try:
        with pytest.raises(BranchMoved):
            refs.create(entry)
    except CommitInDoubt:
        assert failures == [1, 2, 3]
    assert refs.settle(entry) is False
    assert list(Refs(bucket).entries(MAIN)) == [theirs]


class Denying(Flaky):
    """Fails once without an answer, then refuses."""

    def _call(self, call, *arguments):
        self._calls += 1
        if self._calls in self._failures:
            raise StoreUnavailable("x://", "call", "lost")
        raise StoreDenied("x://", "call", "no")


def test_a_refusal_leaves_no_doubt_unless_an_answer_was_lost_before_it(bucket):
    entry = Refs(bucket).next_entry(MAIN, None, A, "me", "why")
    with pytest.raises(StoreDenied):
        Refs(Denying(bucket, [], landed=False)).create(entry)
    with pytest.raises(CommitInDoubt) as caught:
        Refs(Denying(bucket, [1], landed=False)).create(entry)
    assert (caught.value.branch, caught.value.version) == ("main", A)


def test_a_hint_that_cannot_be_written_does_not_fail_the_move(bucket):
    entry = Refs(Flaky(bucket, [2], landed=False)).move(MAIN, None, A, "me", "why")
    assert Refs(bucket).newest(MAIN) == entry


@pytest.mark.parametrize("name", ["main", "feature/x", "run-7_b.1", "a@b", "große", "abc", "v1.0+x", "step", "x" * 200])
def test_ordinary_names_are_allowed(name):
    assert branch_ref(name) == f"branches/{name}"
    assert tag_ref(name) == f"tags/{name}"


BAD_NAMES = (
    "/ a/ /a a//b .a a/.b a. a..b a~1 a^ a:b a* a[ a? a\\b a@{1} @ HEAD -a x.lock step:1 dead 1234 ABCDEF tags/x"
)


@pytest.mark.parametrize("name", [*BAD_NAMES.split(), "", "a b", "a\n", "a\0", "f" * 64, "x" * 201, "\ud800", 1, None])
def test_names_that_read_as_something_else_are_refused(name):
    with pytest.raises(BadRefName):
        check_name(name)


@given(st.text(min_size=1, max_size=20))
def test_a_name_that_is_allowed_never_reads_as_another_kind_of_ref(name):
    try:
        check_name(name)
    except BadRefName:
        return
    assert not set(name) & set("~^: \t\n")
    assert ".." not in name
    assert "@{" not in name
