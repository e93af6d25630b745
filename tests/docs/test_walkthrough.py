"""The tutorial is walked through, its Python and its commands in their order; commands print what it shows."""

import pytest

from tests.docs.pages import ROOT, answer, general, steps


@pytest.mark.parametrize("page", ["docs/tutorial.md"])
def test_what_a_page_shows_happens(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    names = {}
    for kind, what, rest in steps(ROOT / page):
        if kind == "python":
            exec(compile("\n" * what + rest, page, "exec"), names)
        elif what.startswith("export "):
            monkeypatch.setenv(*what.removeprefix("export ").split("="))
        else:
            code, out, err = answer(what)
            assert (code, err) == (0, ""), what
            printed = [general(line, tmp_path) for line in out.splitlines()]
            assert printed == [general(line, tmp_path) for line in rest], what
