"""A child process that is killed, or stopped, right before one of the moments at which something takes effect.

A file gets its name at one moment, and so it is lost; a transaction ends at one. So these moments are all there are:
links, renames and removals in a directory, and the COMMITs of the database in it. Python tells of the former before it
asks the operating system (sys.addaudithook), SQLAlchemy of the latter.
"""

import itertools
import os
import signal
import sys

from sqlalchemy import Engine, event

from tests.processes import in_a_fork

MOMENTS = ("os.link", "os.rename", "os.remove")


class Child:
    """A fork that does `work(*args)`, and sends itself a signal before its nth moment (from 1)."""

    def __init__(self, nth, how, root, work, *args):
        self._reads, writes = os.pipe()
        self.pid = in_a_fork(self._run, writes, nth, how, str(root), work, args)
        os.close(writes)
        self._status = os.waitpid(self.pid, os.WUNTRACED)[1]

    @property
    def stopped(self):
        """Whether it is waiting to be resumed."""
        return os.WIFSTOPPED(self._status)

    @property
    def killed(self):
        return os.WIFSIGNALED(self._status)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)
        self._status = os.waitpid(self.pid, os.WUNTRACED)[1]
        assert not self.stopped

    def told(self):
        """Lines of what it told: the moment at which it got the signal, and whatever `work` told."""
        with open(self._reads) as file:
            told = file.read().splitlines()
        assert self.killed or os.waitstatus_to_exitcode(self._status) == 0
        return told

    @property
    def moment(self):
        """What was about to happen when it was stopped."""
        return os.read(self._reads, 1000).decode()

    @staticmethod
    def _run(writes, nth, how, root, work, args):
        numbers = itertools.count(1)

        def reached(what):
            if next(numbers) == nth:
                os.write(writes, f"{what}\n".encode())
                os.kill(os.getpid(), how)

        def hook(name, arguments):
            # The store asks for the time by making a file and removing it.
            if name in MOMENTS and os.fspath(arguments[0]).startswith(root) and not is_clock(arguments[0]):
                reached(f"{name} {arguments[1] if name != 'os.remove' else arguments[0]}")

        sys.addaudithook(hook)
        event.listen(Engine, "commit", lambda connection: reached("COMMIT"))
        work(lambda what: os.write(writes, f"{what}\n".encode()), *args)


def is_clock(path):
    return os.path.basename(os.fspath(path)).startswith("now.tmp-")
