"""Words, columns and drawings."""

import pytest
from deltavc.cli import graph, texts
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (123_456, "123 kB"),
        (999_999, "1.0 MB"),
        (55_000_000_000, "55.0 GB"),
    ],
)
def test_sizes(count, said):
    assert texts.nbytes(count) == said


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 0, "0.0 %"), (0, 5, "0.0 %"), (5, 5, "100.0 %"), (1, 1000, "0.1 %"), (21, 1_000_000, "0.0021 %")],
)
def test_shares(part, whole, said):
    assert texts.share(part, whole) == said


@given(st.text())
def test_plain_text_is_one_printable_line(text):
    plain = texts.plain(text)
    assert plain.isprintable() or any(char.isspace() for char in text)
    assert len(plain.splitlines()) <= 1
    assert "\x1b" not in plain


def drawn(*history):
    lines = []
    for row, (version, _) in zip(graph.draw(history), history, strict=True):
        lines += [*row.before, row.node + version, *row.after]
    return lines


def test_a_line_is_drawn_as_a_line():
    assert drawn(("c", ["b"]), ("b", ["a"]), ("a", [])) == ["* c", "* b", "* a"]


def test_a_side_branch_joins_where_it_forked():
    assert drawn(("d", ["b"]), ("x", ["b"]), ("b", ["a"]), ("a", [])) == ["* d", "| * x", "|-'", "* b", "* a"]


def test_three_branches_join_one_after_the_other():
    history = [("d", ["a"]), ("x", ["a"]), ("y", ["a"]), ("a", [])]
    assert drawn(*history) == ["* d", "| * x", "| | * y", "|-|-'", "|-'", "* a"]


def test_a_merge_opens_a_column_for_its_second_parent():
    history = [("m", ["b", "x"]), ("x", ["a"]), ("b", ["a"]), ("a", [])]
    assert drawn(*history) == ["* m", "|-.", "| * x", "* | b", "|-'", "* a"]


def test_a_parent_that_is_not_shown_ends_its_line():
    assert drawn(("c", ["b"]), ("y", ["x"])) == ["* c", "* y"]


@given(st.data())
def test_every_version_has_one_node_and_no_column_is_left_open(data):
    size = data.draw(st.integers(0, 12))
    history = [
        (
            str(child),
            [str(parent) for parent in data.draw(st.lists(st.integers(child + 1, size), unique=True, max_size=3))],
        )
        for child in range(size)
    ]
    rows = graph.draw(history)
    assert [row.node.count("*") for row in rows] == [1] * size
    if rows:
        assert "|" not in rows[-1].rest
