"""The site builds without a warning and without the network, and holds every page, every name and every command."""

import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import PurePosixPath

import pytest
from deltavc.cli.main import COMMANDS

import deltavc
from deltavc import errors
from tests.docs.pages import PAGES, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it, where whatever is asked of the network fails."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """What a page of the site fetches, what it links to in its navigation, and the text that stands in no code."""

    def __init__(self, path):
        super().__init__()
        self.fetched, self.navigation, self.text = [], set(), ""
        self._inside = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "use"):
            self.fetched += [found.get(name) for name in ("src", "srcset", "href") if found.get(name)]
        if tag == "link" and found.get("rel") not in ("prev", "next", "canonical"):
            self.fetched.append(found["href"])
        if tag == "a" and "md-nav__link" in (found.get("class") or ""):
            self.navigation.add(found["href"])
        if tag in ("pre", "code", "script", "style", "nav"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("pre", "code", "script", "style", "nav"):
            self._inside.remove(tag)

    def handle_data(self, text):
        if not self._inside:
            self.text += text


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def test_nothing_comes_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert [url for url in page.fetched if re.match(r"(\w+:)?//", url)] == [], name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet


def test_every_page_is_in_the_navigation(pages):
    home = pages["index.html"].navigation
    assert {name for name in pages if name not in ("404.html", "index.html")} <= home
    written = {PurePosixPath(page.relative_to(ROOT / "docs")).with_suffix(".html").as_posix() for page in PAGES[1:]}
    assert written <= pages.keys()
    assert {"project/index.html", "project/CHANGELOG.html", "project/examples/demo.py.html"} <= pages.keys()


def test_markdown_was_read_as_it_was_meant(pages):
    for name, page in pages.items():
        for left in ("```", "<!--", "](", ":::", "\n| "):
            assert left not in page.text, f"{name} shows {left}"


def test_the_reference_has_every_public_name_and_every_error(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    assert {f"deltavc.{name}" for name in deltavc.__all__} - known == set()
    homes = {f"{getattr(errors, name).__module__}.{name}" for name in errors.__all__}
    assert homes - known == set()


def test_the_reference_has_every_command(site):
    text = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in (*COMMANDS, "db-upgrade"):
        assert f'id="deltavc-{name}"' in text
