"""What a notebook shows of a version, a diff and a repository: short, and harmless whatever stands in them."""

import secrets
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch

import deltavc
from deltavc import notebook

HOSTILE = "</td></table><img src=x onerror=alert(1)>\"' <script>alert(2)</script> $\\href{javascript:1}{x}$ \0\x1b"


class Tags(HTMLParser):
    """The tags and attributes of a text as a browser would find them, and the text between."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = set(), set(), "", []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def repo():
    with deltavc.init(f"memory://notebook-{secrets.token_hex(4)}") as repo:
        state = {HOSTILE: torch.zeros(4), "b": torch.zeros(4)}
        repo.commit(state, step=1)
        state[HOSTILE][0] = 1
        told = {"metrics": {HOSTILE: 0.5}, "meta": {HOSTILE: [HOSTILE]}, "files": {"x<b>.bin": b"1"}}
        repo.commit(state, message=HOSTILE, step=2, author=HOSTILE, **told)
        repo.branch("<b>bold</b>&amp;", "main")
        yield repo


@pytest.mark.parametrize("what", ["version", "diff", "repo"])
def test_nothing_in_a_repository_becomes_html(repo, what):
    shown = {"version": repo.version(), "diff": repo.diff("main~1", "main"), "repo": repo}[what]._repr_html_()
    found = Tags(shown)
    assert found.tags <= {"table", "caption", "tr", "th", "td"}
    assert found.attributes <= {"class", "style", "colspan"}
    assert "<b>bold</b>&amp;" in found.text if what == "repo" else HOSTILE[:30] in found.text
    assert 'class="tex2jax_ignore mathjax_ignore"' in shown


def test_a_version_tells_what_it_is(repo):
    text = Tags(repo.version("main~1")._repr_html_()).text
    for part in (repo.resolve("main~1"), "step1", "100.0 % of 8 lanes", "stored"):
        assert part in text
    assert "message" not in text


def test_a_diff_tells_layers_that_differ(repo):
    text = Tags(repo.diff("main~1", "main")._repr_html_()).text
    assert "total1812.5 %" in text.replace("\n", "")
    assert "b" not in text.split("ulp")[-1]


def test_a_repository_that_is_away_says_so(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        assert "branch" in repo._repr_html_()
        (tmp_path / "repo").rename(tmp_path / "away")
        assert "not to be had now" in repo._repr_html_()


def test_tables_stay_small():
    shown = notebook.table("t", ["a"], [["x" * 10_000]] * 1000, more=5)
    assert shown.count("<tr>") == notebook.MAX_ROWS + 2
    assert "and 945 more" in shown
    assert len(shown) < 2 * notebook.MAX_ROWS * notebook.MAX_TEXT


def test_showing_a_repository_and_a_version_loads_no_torch(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        repo.commit({"w": torch.ones(2)})
    code = "import deltavc, sys; r = deltavc.open(sys.argv[1]); r._repr_html_(); r.version()._repr_html_()"
    code += "; assert not {'torch', 'IPython'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code, tmp_path / "repo"], check=True)
