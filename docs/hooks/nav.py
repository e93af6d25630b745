"""Navigation that is never short of a page: `guides/*.md` stands for all that are not named elsewhere."""

import fnmatch


def on_files(files, config):
    """Put pages in the place of patterns."""
    pages = sorted(file.src_uri for file in files.documentation_pages())
    named = set(_named(config.nav))
    config.nav = _expanded(config.nav, [page for page in pages if page not in named])
    return files


def _named(item):
    """The pages that a part of the navigation names."""
    match item:
        case str():
            return [item]
        case dict():
            return [page for each in item.values() for page in _named(each)]
    return [page for each in item for page in _named(each)]


def _expanded(item, rest):
    """A part of the navigation with the pages that patterns stand for; sections that are empty then are left out."""
    match item:
        case str():
            return item
        case dict():
            return {title: _expanded([each] if "*" in each else each, rest) for title, each in item.items()}
    found = []
    for each in item:
        found += fnmatch.filter(rest, each) if isinstance(each, str) and "*" in each else [_expanded(each, rest)]
    return [each for each in found if not isinstance(each, dict) or any(each.values())]
