"""A store in a directory whose clock a test can turn, for all processes that use it.

/tmp/x/repo         objects, as old as the file system says
/tmp/x/repo.turns   when the clock was turned, by this machine's clock, and how far it was ahead from then on
"""

import contextlib
import time
from datetime import timedelta
from pathlib import Path

from deltavc.store.local import LocalStore


class ClockedDirectory(LocalStore):
    """For `deltavc.opening.open_store`, in the place of a LocalStore."""

    def __init__(self, root, options=None):
        super().__init__(str(root))

    def wait(self, **how_long):
        """Let time go by."""
        turns = self._turns()
        ahead = turns[-1][1] + timedelta(**how_long).total_seconds()
        lines = [f"{when} {far}\n" for when, far in [*turns, (time.time(), ahead)]]
        new = Path(f"{self.url}.turning")
        new.write_text("".join(lines))
        new.rename(f"{self.url}.turns")

    def now(self):
        return self._turned(super().now(), self._turns())

    def stat(self, key):
        return self._as_old_as_told(super().stat(key), self._turns())

    def list(self, prefix=""):
        turns = self._turns()
        for found in super().list(prefix):
            yield self._as_old_as_told(found, turns)

    def sweep(self, older_than=None):
        return 0  # it would go by the clock of the file system

    def _turns(self):
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"{self.url}.turns").read_text().splitlines()
            return [tuple(map(float, line.split())) for line in lines]
        return [(0.0, 0.0)]

    def _as_old_as_told(self, found, turns):
        return type(found)(found.key, found.nbytes, self._turned(found.modified, turns))

    def _turned(self, when, turns):
        return when + timedelta(seconds=next(far for since, far in reversed(turns) if since <= when.timestamp()))
