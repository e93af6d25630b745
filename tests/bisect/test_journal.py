"""What is kept of a search: all of it or the one before, readable by people, damaged never believed."""

import threading

import pytest

from deltavc.bisect.journal import STATE, Journal, Session, as_script, parse_script
from deltavc.bisect.marks import Marks
from deltavc.errors import BadJournal

MARKS = Marks().adding("bad", ["b" * 64]).adding("good", ["a" * 64, "c" * 64]).adding("skip", ["d" * 64])


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / ".deltavc" / "bisect" / "repository")


def test_what_was_written_is_read(journal):
    session = Session(marks=MARKS, current="e" * 64, directory="/some/where", leave_out=("*.pt",))
    assert journal.read() is None
    with journal.locked():
        journal.write(session)
    assert journal.read() == session
    assert Session().id != Session().id


def test_removing_leaves_nothing(journal, tmp_path):
    with journal.locked():
        journal.write(Session())
        (journal.weights / "model").mkdir(parents=True)
        assert journal.remove()
    assert list((tmp_path / ".deltavc").iterdir()) == []
    with journal.locked():
        assert not journal.remove()


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-9], lambda text: text.replace('"skip"', '"good"'), lambda text: "", lambda text: "{}"],
)
def test_a_damaged_file_is_an_error(journal, damage):
    with journal.locked():
        journal.write(Session(marks=MARKS))
    path = journal.weights.parent / STATE
    path.write_text(damage(path.read_text()))
    with pytest.raises(BadJournal):
        journal.read()


def test_marks_of_many_at_once_are_all_kept(journal):
    with journal.locked():
        journal.write(Session())

    def mark(number):
        with journal.locked():
            journal.write(journal.read().marking("skip", [f"{number:064}"]))

    threads = [threading.Thread(target=mark, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(journal.read().marks.skipped) == [f"{number:064}" for number in range(16)]


def test_a_script_makes_the_same_marks():
    told = {mark.version: f"step 3 # 'quotes' {mark.version[:4]}" for mark in MARKS.entries}
    again = Marks()
    for verdict, refs in parse_script("log", as_script(MARKS, told)):
        again = again.adding(verdict, refs)
    assert again == MARKS


@pytest.mark.parametrize(
    "line", ["git bisect good a", "deltavc bisect", "deltavc bisect good", "deltavc bisect run x", "'open", "x"]
)
def test_another_text_is_no_log(line):
    with pytest.raises(BadJournal, match="line 2"):
        list(parse_script("log", f"deltavc bisect start\n{line}"))
