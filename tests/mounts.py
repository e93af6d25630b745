"""Small disks of one's own, where this user may mount them."""

import contextlib
import subprocess


@contextlib.contextmanager
def mounted(place, nbytes):
    """A tmpfs of this size at a new directory; None where this user may not mount one."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", place]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def make_read_only(place):
    """Let nobody write to a mounted disk any more."""
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
