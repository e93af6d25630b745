"""Errors of databases."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class DatabaseError(DeltavcError):
    """The index database did not do what it was asked."""


@dataclass(eq=False)
class DatabaseNeeded(DatabaseError):
    """A question that takes all of history was asked of a repository that was opened without a database."""

    url: str

    kind = "database_needed"
    hint = (
        "Name one: --db sqlite:///lineage.db or --db postgresql://host/name "
        "(in Python db=..., in the environment DELTAVC_DB). An empty one is filled from the bucket."
    )

    def __str__(self) -> str:
        return f"{self.url} was opened without a database, and this needs one"


@dataclass(eq=False)
class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached, is locked, or failed."""

    url: str
    reason: str

    kind = "database_unavailable"
    hint = (
        "Check its address, that it runs, and that its disk has room and can be written. It is only an index: "
        "a damaged SQLite file may be deleted, --db sqlite:// does without, and an empty database fills itself."
    )

    def __str__(self) -> str:
        return f"database {self.url} is unavailable: {self.reason}"


@dataclass(eq=False)
class SchemaOutdated(DatabaseError):
    """The database was made by an older release."""

    url: str
    found: str
    needed: str

    kind = "schema_outdated"
    hint = "Run `deltavc db upgrade`."

    def __str__(self) -> str:
        return f"database {self.url} has schema {self.found}; this release needs {self.needed}"


@dataclass(eq=False)
class SchemaTooNew(DatabaseError):
    """The database was made by a newer release."""

    url: str
    found: str
    known: str

    kind = "schema_too_new"
    hint = "Use the newer release of deltavc, or name another database; an empty one is filled from the bucket."

    def __str__(self) -> str:
        return f"database {self.url} has schema {self.found}, newer than {self.known}, the newest this release knows"


@dataclass(eq=False)
class WrongDatabase(DatabaseError):
    """The database indexes another repository."""

    url: str
    found: str
    expected: str

    kind = "wrong_database"
    hint = "Name another database; an empty one is filled from the bucket."

    def __str__(self) -> str:
        return f"database {self.url} belongs to repository {self.found}, not to {self.expected}"
