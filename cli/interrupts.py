"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread is. While it loads modules that is too early: C code in the
middle of torch, numpy or numba throws the exception away, and the command goes on. So the signal waits until nothing
is being loaded any more. Later, too, C code may put an error of its own in its place; what then ends the command is
taken for what it was.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_AGAIN_SECONDS = 0.05
_LOADER = "<frozen importlib._bootstrap>"


@contextlib.contextmanager
def after_loading() -> Iterator[None]:
    """Let Ctrl-C in this block raise KeyboardInterrupt, but not before the modules being loaded are there.

    Where it is ignored (`nohup`, a shell's background job), or does something else already, it stays as it is.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    handler = _Handler()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    except Exception as error:
        if handler.raised:
            raise KeyboardInterrupt from error
        raise
    finally:
        handler.ended = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Handler:
    def __init__(self) -> None:
        self.raised = False
        self.ended = False
        self._waits = False
        self._main_thread = threading.get_ident()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not _is_loading(frame):
            self.raised = True
            raise KeyboardInterrupt
        if not self._waits:
            self._waits = True
            _thread.start_new_thread(self._repeat, ())  # threading.Thread takes locks, which may be held here

    def _repeat(self) -> None:
        time.sleep(_AGAIN_SECONDS)
        self._waits = False
        if not self.ended:
            signal.pthread_kill(self._main_thread, signal.SIGINT)  # this also ends a wait for a lock


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _LOADER:
            return True
        frame = frame.f_back
    return False
