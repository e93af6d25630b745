"""A store in a directory whose clock a test can turn, for all processes that use it.

/tmp/x/repo         objects, stamped by a clock that is ahead of this machine's
/tmp/x/repo.ahead   by so many seconds
"""

import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path

from deltavc.store.local import LocalStore


class ClockedDirectory(LocalStore):
    """Give it to `deltavc.opening.open_store`'s callers in the place of a LocalStore."""

    def __init__(self, root, options=None):
        super().__init__(str(root))

    @property
    def ahead(self):
        with contextlib.suppress(FileNotFoundError):
            return float(Path(f"{self.url}.ahead").read_text())
        return 0.0

    def wait(self, **how_long):
        """Let time go by."""
        turned = Path(f"{self.url}.turned")
        turned.write_text(str(self.ahead + timedelta(**how_long).total_seconds()))
        turned.rename(f"{self.url}.ahead")

    def now(self):
        return super().now() + timedelta(seconds=self.ahead)

    @contextlib.contextmanager
    def _new_file(self, target):
        with super()._new_file(target) as new:
            self._stamp(new)
            yield new

    def _write(self, operation, key, fill, place):
        def stamped(new, target):
            self._stamp(new)
            return place(new, target)

        return super()._write(operation, key, fill, stamped)

    def _stamp(self, new):
        now = time.time() + self.ahead
        os.utime(new.path, (now, now))
