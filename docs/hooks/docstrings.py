"""Docstrings of ours as griffe reads them: errors that are only named, not described, are listed too.

Raises:
    UnknownRef, AmbiguousRef            griffe takes what has a colon, and leaves this line out
    ValueError: a negative limit.
"""

import re

import griffe

_RAISES = re.compile(r"^Raises:\n(?:(?: {4}.*)?(?:\n|\Z))+", re.MULTILINE)
_NAMED = re.compile(r"^ {4}(?=\S)[^:\n]+$", re.MULTILINE)


class Raises(griffe.Extension):
    """Puts a colon after errors that have none."""

    def on_instance(self, *, obj, **rest):
        """Mend the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _RAISES.sub(lambda found: _NAMED.sub(r"\g<0>:", found[0]), obj.docstring.value)
