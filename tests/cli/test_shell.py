"""What is filled into a shell's line arrives as it is, whatever it holds and whichever quotes it stands in."""

import pytest
from deltavc.cli.shell import run_for
from hypothesis import example, given, settings
from hypothesis import strategies as st

PATHS = st.text(st.sampled_from("a/ '\"\\$`*;&|(){}~#!\t\u00e9"), min_size=1, max_size=12).map(lambda name: f"/{name}")


@pytest.mark.parametrize("place", ["{path}", "'{path}'", '"{path}"', """'/'"$(echo '')"'{path}'"""], ids=repr)
@settings(max_examples=15, deadline=None)
@example(path="/data/my run's $(touch hurt) \\")
@given(path=PATHS)
def test_a_path_is_one_word(place, path):
    prefix = "/" if place.startswith("'/'") else ""
    assert run_for(f'test "{prefix}$DELTAVC_PATH" = {place}', "0" * 64, 1, path) == 0


def test_words_of_their_own_are_filled_in_one_by_one():
    assert run_for(["test", "x{step} {path}", "=", "x7 /a b"], "0" * 64, 7, "/a b") == 0
