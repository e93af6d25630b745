"""What every test of the bench has."""

import pytest

from deltavc import opening
from tests.breaking.clocks import ClockedDirectory


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where copies of remote objects, and the journals of checks, are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(tmp_path / "cache")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where repositories are made that a module's tests copy."""
    return str(tmp_path_factory.mktemp("made"))


@pytest.fixture
def clocked(monkeypatch):
    """Let this process and its children open stores in directories whose clock can be turned."""
    monkeypatch.setattr(opening, "open_store", ClockedDirectory)
