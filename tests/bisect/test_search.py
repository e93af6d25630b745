"""The search finds what a look at every version finds, in few tries, whatever cannot be tried."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltavc.bisect.search import Found, Try, Undecided, choose, merge_bases, num_steps, reaches
from tests.bisect.histories import ancestors, found_in, histories, is_after, line, searched


@given(histories(), st.data())
def test_the_culprit_is_found_in_any_history(parents, data):
    bad = list(parents)[-1]
    culprit = data.draw(st.sampled_from(list(parents)))
    before = [version for version in parents if not is_after(parents, version, culprit)]
    good = data.draw(st.lists(st.sampled_from(before), unique=True)) if before else []
    choice, tried = searched(
        parents, bad, good, lambda version: "bad" if is_after(parents, version, culprit) else "good"
    )
    assert choice == Found(culprit)
    assert len(tried) < max(len(parents), 2)


@given(histories(), st.data())
def test_where_some_cannot_be_tried_the_culprit_is_among_what_is_left_and_nothing_else_could_be_tried(parents, data):
    bad = list(parents)[-1]
    culprit = data.draw(st.sampled_from(list(parents)))
    some = st.sets(st.sampled_from([version for version in parents if version != bad] or [bad]))
    skipped, untestable = data.draw(some) - {bad}, data.draw(some) - {bad}

    def verdict(version):
        return "skip" if version in skipped else "bad" if is_after(parents, version, culprit) else "good"

    choice, tried = searched(parents, bad, [], verdict, untestable)
    left = found_in(choice)
    assert culprit in left
    told = [version for version in left if version not in skipped | untestable and version != bad]
    assert all(version in tried for version in told)  # only the last bad one, which was told
    assert len(told) <= 1
    assert isinstance(choice, Found) == (len(left) == 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100, 128])
def test_a_line_takes_the_logarithm_of_its_length(size):
    parents = line(size)
    most = 0
    for culprit in parents:
        choice, tried = searched(
            parents, str(size - 1), [], lambda version, at=int(culprit): "bad" if int(version) >= at else "good"
        )
        assert choice == Found(culprit)
        most = max(most, len(tried))
    assert most == math.ceil(math.log2(size))


def test_a_long_line_is_no_work():
    suspects = line(200_000)
    assert choose(suspects, "199999").version == "99999"


@given(histories())
def test_what_is_tried_divides_the_suspects_as_evenly_as_any(parents):
    bad = list(parents)[-1]
    counted = {version: len(ancestors(parents, [version])) for version in parents}
    assert reaches(parents) == counted
    choice = choose(parents, bad)
    if isinstance(choice, Try):
        smaller = {version: min(count, len(parents) - count) for version, count in counted.items()}
        assert smaller[choice.version] == max(smaller.values())
        assert choice.num_left == len(parents) - counted[choice.version] - 1


def test_skipped_neighbours_are_kept_away_from():
    """Of a hundred versions, thirty in the middle cannot be told: a few tries get out of them."""
    _, tried = searched(
        line(101), "100", ["0"], lambda v: "skip" if 35 <= int(v) < 65 else "bad" if v > "8" else "good"
    )
    assert sum(35 <= int(version) < 65 for version in tried) <= 5


def test_when_none_can_be_tried_all_are_suspects():
    assert choose(line(4), "3", skipped=["0"], untestable=["1", "2"]) == Undecided(("0", "1", "2", "3"))


@given(histories(), st.data())
def test_merge_bases_are_the_newest_common_ancestors(parents, data):
    one, other = data.draw(st.sampled_from(list(parents))), data.draw(st.sampled_from(list(parents)))
    common = ancestors(parents, [one]) & ancestors(parents, [other])
    expected = {base for base in common if not any(is_after(parents, late, base) for late in common - {base})}
    assert set(merge_bases(parents, one, other)) == expected


def test_the_number_of_steps_is_gits():
    # What `git bisect start` says of so many revisions.
    assert [num_steps(size) for size in (1, 2, 3, 4, 5, 6, 7, 8, 100, 1000)] == [0, 0, 1, 1, 1, 2, 2, 2, 6, 9]
