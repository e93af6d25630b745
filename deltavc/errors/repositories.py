"""Errors of repositories: none there, one there already, one of another release."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


@dataclass(eq=False)
class NotARepository(DeltavcError):
    """No repository where one was named, or none named at all."""

    url: str
    reason: str = "there is no deltavc.json in it"

    kind = "no_repository"
    exit_code = 10
    hint = "Create one with `deltavc init URL`, or name another with --repo or DELTAVC_REPO."

    def __str__(self) -> str:
        return f"{self.url} is not a deltavc repository: {self.reason}"


@dataclass(eq=False)
class RepositoryExists(DeltavcError):
    """`init` met a repository, or files that are not ours."""

    url: str
    reason: str = "there is a deltavc.json in it already"

    kind = "repository_exists"
    hint = "Open it with deltavc.open(url) or --repo URL, or name an empty place."

    def __str__(self) -> str:
        return f"{self.url} cannot become a new repository: {self.reason}"


@dataclass(eq=False)
class FormatUnsupported(DeltavcError):
    """The repository says it has a format that this release does not read."""

    url: str
    found: str
    supported: int

    kind = "format_unsupported"
    hint = "Use a release of deltavc that knows this format."

    def __str__(self) -> str:
        return f"{self.url} has format {self.found}; this release reads format {self.supported}"
