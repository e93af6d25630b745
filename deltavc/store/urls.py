"""Where a repository lies, without its secrets.

A URL may carry credentials. They are taken out here, once, so that no log line, error or `url` field can show
them.

    locate("s3://id:secret@bucket/runs")   # Location("s3", "bucket/runs", Credentials("id", "secret"))
    redact("postgresql://me:pw@db/x")      # "postgresql://***@db/x"
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from deltavc.errors import StoreUnfit

_SECRET_WORD = r"(?:key|secret|token|passw|pwd|credential|signature)"
_USER_INFO = re.compile(r"://\S*@")
_IN_QUERY = re.compile(rf"(?i)([?&][^=&\s]*{_SECRET_WORD}[^=&\s]*=)[^&\s]*")
_IN_SETTINGS = re.compile(r"(?i)(\b[\w-]*(?:secret|token|passw|pwd)[\w-]*\s*=\s*)('[^']*'|[^&;\s]+)")


@dataclass(frozen=True, slots=True)
class Location:
    """A place that may hold a repository.

    scheme: file, memory or s3. place: an absolute path, a name, or bucket and prefix. key, secret: the
    credentials that the URL carried, never shown.
    """

    scheme: str
    place: str
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """How to name this place to people; local places by their path."""
        return self.place if self.scheme == "file" else f"{self.scheme}://{self.place}"


def locate(url: str | os.PathLike[str]) -> Location:
    """Tell what kind of place a URL or path names.

    Raises:
        StoreUnfit: a scheme that deltavc has no store for, or a URL that names no place.
    """
    text = os.fspath(url)
    if "://" not in text:
        if not text:
            raise StoreUnfit("''", "it names no place")
        return Location("file", os.path.abspath(text))
    scheme, rest = text.split("://", 1)
    match scheme.lower():
        case "file":
            return _locate_file(text)
        case "memory":
            return _named("memory", rest, text)
        case "s3" | "s3a":
            return _locate_s3(rest, text)
    raise StoreUnfit(redact(text), f"there is no store for {scheme}://; use a path, file://, memory:// or s3://")


def redact(text: str) -> str:
    """Return `text` with the user part of every URL in it, and every secret option, replaced by ***.

    Shows rather too little than too much: what stands between :// and the last @ of a word is hidden whole.
    """
    text = _USER_INFO.sub("://***@", text)
    text = _IN_QUERY.sub(r"\1***", text)
    return _IN_SETTINGS.sub(r"\1***", text)


def _locate_file(text: str) -> Location:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise StoreUnfit(redact(text), "a file URL has three slashes and an absolute path: file:///data/repo")
    return Location("file", os.path.abspath(unquote(parts.path)))


def _locate_s3(rest: str, text: str) -> Location:
    key = secret = None
    if "@" in rest:
        user, rest = rest.rsplit("@", 1)
        key, _, secret = (unquote(part) for part in user.partition(":"))
    if "?" in rest or "#" in rest:
        raise StoreUnfit(redact(text), "options do not go into the URL; pass storage_options")
    return _named("s3", rest, text, key, secret)


def _named(scheme: str, rest: str, text: str, key: str | None = None, secret: str | None = None) -> Location:
    parts = [part for part in rest.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise StoreUnfit(redact(text), "it names no place")
    return Location(scheme, "/".join(parts), key or None, secret or None)
