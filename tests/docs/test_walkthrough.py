"""Pages with commands are walked through, Python and commands in their order; commands print what the page shows.

Those of the README and of the command line's page are run by tests of their own.
"""

import pytest

from tests.docs.pages import PAGES, ROOT, answer, general, steps

WALKED = [page for page in PAGES if any(kind != "python" for kind, *_ in steps(page))]
ELSEWHERE = [ROOT / "README.md", ROOT / "docs/cli.md"]


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in WALKED if page not in ELSEWHERE])
def test_what_a_page_shows_happens(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    names = {}
    for kind, what, shown in steps(page):
        if kind == "python":
            exec(compile("\n" * what + shown, page, "exec"), names)
            monkeypatch.setenv("DELTAVC_REPO", names["repo"].url)
        elif what.startswith("export "):
            monkeypatch.setenv(*what.removeprefix("export ").split("="))
        else:
            code, out, err = answer(what)
            assert code == 0, (what, err)
            if kind == "console":
                printed = [general(line, tmp_path) for line in (out + err).splitlines()]
                assert printed == [general(line, tmp_path) for line in shown], what
