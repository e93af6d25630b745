"""The breaking bench: every promise of docs/reliability.md, and what tries hardest to break it.

    whole        what a repository holds, compared bit for bit with what was committed
    operations   everything that writes, each with what it finds and what it has to leave
    clocks       a store in a directory, whose clock a test can turn for all processes
    tally        how much was tried; the last lines of a run, and the table of docs/reliability.md

`make test` runs a short profile: every few calls, a few processes. `make test-long` leaves none out.
"""

import pytest

pytest.register_assert_rewrite(*(f"tests.breaking.{name}" for name in ("whole", "once", "operations")))
