"""Pages link to files that are not in docs/: the README, examples. The site has a page for each of those.

    ../../examples/demo.py   in guides/live.md, which GitHub follows    ->    ../project/examples/demo.py.md

A page is taken as it is, any other file shown as code. Links in such a page are turned in the same way: README.md may
link to docs/index.md.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "project"

_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ALWAYS = ("README.md", "CHANGELOG.md")
"""Files that have a page even where no page links to them."""

_made = {}
"""The file of the project that each page under FOLDER was made from, by page."""


def on_files(files, config):
    """Add a page for every file outside docs/ that a page links to."""
    _made.clear()
    waiting = [*_ALWAYS]
    for file in files.documentation_pages():
        waiting += _outside(f"docs/{file.src_uri}", file.content_string)
    while waiting:
        path = waiting.pop()
        if _page(path) in _made:
            continue
        _made[_page(path)] = path
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            waiting += _outside(path, text)
        else:
            text = f"# {path}\n\n```{path.rpartition('.')[2]}\n{text}```\n"
        files.append(File.generated(config, _page(path), content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links that leave docs/, or a page made here, to where the site has what they lead to."""
    uri = page.file.src_uri
    source = _made.get(uri, f"docs/{uri}")
    return _linked(markdown, lambda link: _turned(uri, source, link))


def _turned(uri, source, link):
    target = _target(source, link)
    if target is None:
        return link
    inside = target.startswith("docs/")
    if inside and uri not in _made:
        return link  # MkDocs follows and checks it
    found = target.removeprefix("docs/") if inside else _page(target)
    return posixpath.relpath(found, posixpath.dirname(uri) or ".")


def _outside(source, text):
    """The files outside docs/ that a page links to."""
    found = []
    _linked(text, lambda link: found.append(_target(source, link)) or link)
    return [target for target in found if target is not None and not target.startswith("docs/")]


def _target(source, link):
    """The file of the project that a link leads to, if it does."""
    if ":" in link:
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return target if (ROOT / target).is_file() else None


def _page(path):
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def _linked(text, turn):
    """A text whose links were turned, those in blocks of code left alone."""
    parts, at = [], 0
    for fence in [*_FENCE.finditer(text), None]:
        prose = text[at : fence.start()] if fence else text[at:]
        parts.append(_LINK.sub(lambda found: found[1] + turn(found[2]) + (found[3] or ""), prose))
        if fence:
            parts.append(fence[0])
            at = fence.end()
    return "".join(parts)
