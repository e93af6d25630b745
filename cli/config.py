"""Which repository is meant: the command line, else the environment, else .deltavc/config.toml here or above.

    # .deltavc/config.toml                       paths in it start from the folder that holds .deltavc
    repo = "runs/demo"
    db = "postgresql://me@host/lineage"
    [storage_options]
    endpoint_url = "http://127.0.0.1:8333"

Nothing secret is ever written to it. Credentials come from the environment: those of AWS for S3, PGPASSWORD or
~/.pgpass for PostgreSQL.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import click

if TYPE_CHECKING:
    from deltavc.repo import Repo

    from .options import Settings

FILE = Path(".deltavc", "config.toml")
HEAD = "# Written by `deltavc init`. Credentials do not belong here: they come from the environment.\n"

_SECRET = re.compile(r"(?i)key|secret|token|passw|pwd|credential|signature")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!:memory:|file:)([^?]+)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a repository is and how to get at it."""

    repo: str
    db: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    named_by: str = field(default="--repo", compare=False)


def open_repo(settings: Settings) -> Repo:
    """Open the repository that is meant. Raises NotARepository and what `deltavc.open` raises."""
    import deltavc
    from deltavc.errors import NotARepository

    place = locate(settings)
    try:
        return deltavc.open(place.repo, place.db, place.storage_options)
    except NotARepository as error:
        error.add_note(f"({place.named_by} names it)")
        raise


def locate(settings: Settings) -> Place:
    """Say which repository is meant, without looking at it.

    A database or storage options in config.toml belong to the repository there, and are not taken for another.

    Raises:
        NotARepository: none was named.
        click.UsageError: config.toml cannot be read.
    """
    from deltavc.errors import NotARepository

    db = settings.db or os.environ.get("DELTAVC_DB") or None
    if settings.repo:
        return Place(settings.repo, db, settings.storage_options)
    if named := os.environ.get("DELTAVC_REPO"):
        return Place(named, db, settings.storage_options, "DELTAVC_REPO")
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            found = read(folder)
            options = {**found.storage_options, **settings.storage_options}
            return replace(found, db=db or found.db, storage_options=options)
    raise NotARepository(str(here), f"no --repo, no DELTAVC_REPO, and no {FILE} here or in a folder above")


def read(folder: Path) -> Place:
    """Read the config.toml of a folder. Raises click.UsageError."""
    path = folder / FILE
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    repo, db, options = content.get("repo"), content.get("db"), content.get("storage_options", {})
    if not isinstance(repo, str) or not repo or not isinstance(db, str | None) or not isinstance(options, dict):
        raise click.UsageError(f'{path} has to say repo = "...", and may say db = "..." and [storage_options]')
    return Place(_anchored(repo, folder), None if db is None else _anchored_db(db, folder), options, str(path))


def write(folder: Path, place: Place) -> list[str]:
    """Write the config.toml of a folder. Returns what was left out because it is secret."""
    lines = [f"repo = {_toml(_portable(place.repo, folder))}"]
    left_out = ["the credentials in the repository's URL"] if _has_user(place.repo) else []
    if place.db is not None:
        db = public_db(place.db)
        if db != place.db:
            left_out.append("the password in the database's URL")
        lines.append(f"db = {_toml(_portable_db(db, folder))}")
    options = {name: value for name, value in place.storage_options.items() if not _is_secret(name, value)}
    left_out += [f"storage option {name}" for name in place.storage_options if name not in options]
    if options:
        lines += ["", "[storage_options]", *(f"{_toml(name)} = {_toml(value)}" for name, value in options.items())]
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return left_out


def public_db(url: str) -> str:
    """A database's URL without passwords; the user's name stays."""
    if "://" not in url or url.startswith("sqlite"):
        return url
    head, _, rest = url.partition("://")
    path, question, query = rest.partition("?")
    user, at, place = path.rpartition("@")
    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if not _SECRET.search(name)]
    if not question or len(kept) == len(parse_qsl(query, keep_blank_values=True)):
        tail = question + query
    else:
        tail = f"?{urlencode(kept)}" if kept else ""
    return f"{head}://{user.partition(':')[0]}{at}{place}{tail}"


def _has_user(url: str) -> bool:
    return "://" in url and "@" in urlsplit(url).netloc


def _is_secret(name: str, value: Any) -> bool:
    if isinstance(value, dict):
        return any(_is_secret(inner, item) for inner, item in value.items())
    return bool(_SECRET.search(name)) or (isinstance(value, str) and _has_user(value))


def _anchored(repo: str, folder: Path) -> str:
    return repo if "://" in repo else str(folder / repo)


def _portable(repo: str, folder: Path) -> str:
    """As config.toml names it: local paths relative if the folder holds them, so that both may be moved together."""
    from deltavc.store.urls import locate

    place = locate(repo)
    if place.scheme != "file":
        return place.url
    return _relative(Path(place.place), folder)


def _anchored_db(db: str, folder: Path) -> str:
    found = _SQLITE_FILE.fullmatch(db)
    return db if found is None else f"{found[1]}{folder / found[2]}{found[3]}"


def _portable_db(db: str, folder: Path) -> str:
    found = _SQLITE_FILE.fullmatch(db)
    return db if found is None else f"{found[1]}{_relative(Path(os.path.abspath(found[2])), folder)}{found[3]}"


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _toml(value: Any) -> str:
    """A TOML value; its strings are those of JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
