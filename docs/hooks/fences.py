"""Blocks of code whose first line says more than the language: Python's Markdown takes one word, GitHub any number."""

import re

_MORE = re.compile(r"^```\w+ [^\n`{=]+$", re.MULTILINE)


def on_page_markdown(markdown, page, config, files):
    """Show such blocks as plain text."""
    return _MORE.sub("```text", markdown)
