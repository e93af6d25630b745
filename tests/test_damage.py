"""Damage any byte that is read: an error says which object and for which version. Any other: nothing changes.

Every object of small repositories is flipped, cut, emptied, lengthened and removed in turn, and every version
is checked out through a database that knew the repository before and through a fresh one. What comes out is
an error of ours or the weights that were committed.
"""

import contextlib
import shutil
import sqlite3

import pytest
import torch

import deltavc
from deltavc import packing, walk
from deltavc.errors import (
    Corruption,
    CorruptObject,
    DatabaseUnavailable,
    DeltavcError,
    MissingObject,
    NoPath,
    NotARepository,
    RefError,
)
from tests import states


def build(url):
    """A history with every kind of object in it; returns each version's state."""
    expected = {}
    with deltavc.init(url) as repo, repo.writer() as writer:
        tied = torch.randn(6, 10)
        state = {"w": tied, "v": tied, "x": states.random_bits("bfloat16", (40,)), "frozen": torch.randn(30)}
        for number, codec in enumerate((None, "raw", "planes", "sparse", "xor-zstd", None)):
            version = writer.commit(
                state, codec=codec, snapshot=number == 3, step=number, files={"rng": b"%d" % number}
            )
            expected[version.id] = state
            state = {**states.stepped(state, number), "frozen": state["frozen"]}
        state["new"] = state.pop("x")
        version = writer.commit(state, metrics={"loss": 0.5})
        expected[version.id] = state
        repo.branch("other", "main~2")
        repo.tag("v1", "main~1")
    return expected


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("damage") / "repo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FRAME_BYTES", 64)
        expected = build(root)
    for name in ("lineage.db-wal", "lineage.db-shm"):
        (root / name).unlink(missing_ok=True)  # closed: everything is in the database itself
    return root, expected


@pytest.fixture
def copy(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "repo")
    return tmp_path / "repo"


def objects(root):
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("lineage.db"))


def outcome(repo, version, expected):
    """The error that a checkout ends in; None when it gives the right weights."""
    try:
        found = repo.checkout(version)
    except DeltavcError as error:
        return error
    assert found.version == version
    assert states.same(found, expected[version])
    return None


def outcomes(root, expected, db=None):
    """The errors that checking out every version ends in."""
    try:
        with deltavc.open(root, db=db) as repo:
            return [error for version in expected if (error := outcome(repo, version, expected))]
    except DeltavcError as error:
        return [error]


def damages(body, num_places):
    """The body with one bit flipped, another one at each of these places, and of other lengths."""
    for place in sorted({number * len(body) // num_places for number in range(num_places)}):
        yield body[:place] + bytes([body[place] ^ (1 << (place * 5 % 8))]) + body[place + 1 :]
    for nbytes in sorted({0, 1, len(body) // 2, len(body) - 1}):
        yield body[:nbytes]
    yield bytes(len(body))


def first_reader(repo, path, expected):
    """The first version that cannot be checked out without this object, if there is one."""
    body = path.read_bytes()
    path.unlink()
    errors = {version: outcome(repo, version, expected) for version in expected}
    path.write_bytes(body)
    assert all(path.as_posix().endswith(error.key) for error in errors.values() if error)
    return next((version for version, error in errors.items() if error), None)


@pytest.mark.parametrize("reading", ["whole packs", "parts of packs"])
def test_a_damaged_pack_or_layout_is_named_or_was_not_read(original, copy, reading, monkeypatch):
    _, expected = original
    if reading == "parts of packs":
        monkeypatch.setattr(walk, "SMALL_PACK", 0)
        monkeypatch.setattr(walk, "MAX_GAP", 0)
    num_errors = num_right = 0
    with deltavc.open(copy) as repo:
        for path in [*objects(copy / "packs"), *objects(copy / "layouts")]:
            body, version = path.read_bytes(), first_reader(repo, path, expected)
            if version is None:
                continue  # a snapshot made the way shorter
            for damaged in damages(body, 50 if path.suffix == ".pack" else 10):
                path.write_bytes(damaged)
                error = outcome(repo, version, expected)
                if error is None:
                    num_right += 1
                else:
                    num_errors += 1
                    assert isinstance(error, CorruptObject)
                    assert path.as_posix().endswith(error.key)
                    assert error.version in expected
                    assert error.exit_code == 20
            if path.suffix == ".pack":
                path.write_bytes(body + b"more")  # nobody asks for what is beyond the end
                assert outcome(repo, version, expected) is None
            path.write_bytes(body)
    assert num_errors > 200
    assert (num_right > 0) == (reading == "parts of packs")


@pytest.mark.parametrize(("kind", "num_objects"), [("edges", 3), ("versions", 2), ("refs", 3)])
def test_damaged_records_are_named_when_a_database_is_filled_from_them(original, copy, kind, num_objects):
    _, expected = original
    records = [path for path in objects(copy / kind) if path.name != "last"]
    for path in records[:: len(records) // num_objects]:
        body = path.read_bytes()
        for damaged in damages(body, 8):
            path.write_bytes(damaged)
            errors = outcomes(copy, expected, "sqlite://")
            if kind == "refs" and not errors:
                continue  # who, when and why are told to people; no weights hang on them
            assert errors
            for error in errors:
                assert isinstance(error, CorruptObject | RefError)
                if kind != "refs" and isinstance(error, CorruptObject):
                    assert path.as_posix().endswith(error.key)
        path.write_bytes(body)
    assert outcomes(copy, expected, "sqlite://") == []


def test_what_a_database_knows_is_not_read_again(original, copy):
    _, expected = original
    for kind in ("edges", "versions"):
        for path in objects(copy / kind):
            path.write_bytes(b"no record")
    assert outcomes(copy, expected) == []


def test_an_object_that_is_gone_is_an_error_or_is_not_needed(original, copy):
    _, expected = original
    for path in objects(copy):
        body, key = path.read_bytes(), path.relative_to(copy).as_posix()
        path.unlink()
        for db in (None, "sqlite://"):
            for error in outcomes(copy, expected, db):
                assert isinstance(error, MissingObject | RefError | NoPath | NotARepository)
                if isinstance(error, MissingObject):
                    assert error.key == key
        path.write_bytes(body)


def test_an_object_in_the_place_of_another_is_corrupt(original, copy):
    _, expected = original
    for kind in ("packs", "edges", "versions", "layouts", "refs"):
        paths = [path for path in objects(copy / kind) if path.name != "last"]
        bodies = [path.read_bytes() for path in paths]
        for path, body in zip(paths, bodies[1:] + bodies[:1], strict=True):
            path.write_bytes(body)
        errors = outcomes(copy, expected, "sqlite://")
        assert errors
        assert all(isinstance(error, CorruptObject | RefError) for error in errors)
        for path, body in zip(paths, bodies, strict=True):
            path.write_bytes(body)


def test_damaged_files_are_not_handed_over(original, copy, tmp_path):
    _, expected = original
    with deltavc.open(copy) as repo:
        for path in objects(copy / "files"):
            path.write_bytes(b"?" + path.read_bytes()[1:])
        for version in list(expected)[:6]:
            with pytest.raises(CorruptObject, match=version):
                repo.read_file(version, "rng")
            with pytest.raises(CorruptObject, match="files/"):
                repo.checkout(version, path=tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_writer_that_met_damage_goes_on_from_where_it_was(original, copy):
    _, expected = original
    state = list(expected.values())[-1]
    with deltavc.open(copy) as repo, repo.writer() as writer:
        writer.commit(state)
        before = writer.version
        for path in objects(copy / "packs"):
            path.rename(path.with_suffix(".away"))
        live = {name: torch.zeros_like(tensor) for name, tensor in next(iter(expected.values())).items()}
        with pytest.raises(Corruption):
            writer.move(next(iter(expected)), into=live)
        assert not any(tensor.any() for tensor in live.values())
        with pytest.raises(Corruption):
            writer.rollback(next(iter(expected)), into=live)
        assert (writer.version, repo.resolve("main")) == (before, before)
        with pytest.raises(Corruption):  # what it holds went with the failed walk, and has to be read again
            writer.commit(state)
        for path in objects(copy / "packs"):
            path.rename(path.with_suffix(".pack"))
        new = states.stepped(state, 11)
        assert writer.commit(new).parents == (before,)
        assert states.same(repo.checkout(), new)


def test_live_tensors_that_met_damage_are_said_to_hold_no_version(original, copy):
    _, expected = original
    with deltavc.open(copy) as repo:
        readers = {pack: first_reader(repo, pack, expected) for pack in objects(copy / "packs")}
        pack, version = next((pack, version) for pack, version in readers.items() if version)
        pack.write_bytes(pack.read_bytes()[:-1])
        live = {name: torch.zeros_like(tensor) for name, tensor in expected[version].items()}
        with pytest.raises(CorruptObject) as raised:
            repo.checkout(version, into=live)
    assert "hold no version" in raised.value.__notes__[0]


def test_a_damaged_row_of_the_database_is_an_error(original, copy):
    _, expected = original
    version = list(expected)[-1]
    with contextlib.closing(sqlite3.connect(copy / "lineage.db", isolation_level=None)) as db:
        rows = db.execute("SELECT pk, body FROM edges").fetchall()
        for place in range(0, min(len(body) for _, body in rows), 9):
            for pk, body in rows:
                damaged = body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :]
                db.execute("UPDATE edges SET body = ? WHERE pk = ?", (damaged, pk))
            with deltavc.open(copy) as repo, pytest.raises(DatabaseUnavailable, match="damaged"):
                repo.checkout(version)
    assert outcomes(copy, expected, "sqlite://") == []
