"""The command as a process: what it loads, how fast it starts, and how it ends when it is cut short."""

import importlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
from deltavc.cli import interrupts

COMMAND = Path(sysconfig.get_path("scripts")) / "deltavc"

LOADED = """
import sys
from deltavc.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print(*sorted({"torch", "numba", "s3fs", "numpy", "rich", "sqlalchemy"} & sys.modules.keys()), file=sys.stderr)
"""


def deltavc(*args, **options):
    return subprocess.run([COMMAND, *map(str, args)], capture_output=True, text=True, timeout=120, **options)


def loaded(*args):
    done = subprocess.run([sys.executable, "-c", LOADED, *args], capture_output=True, text=True, check=True)
    return done.stderr.split()


def test_help_loads_nothing_heavy(folder):
    assert loaded("--help") == []
    assert loaded("commit", "--help") == []


def test_log_loads_neither_torch_nor_numba_nor_s3fs(project):
    assert loaded("log") == ["sqlalchemy"]


def test_help_takes_at_most_350_ms(folder):
    """Of processor time, the median of five: the clock on the wall also counts what else the machine does."""

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert deltavc("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert statistics.median(seconds() for _ in range(5)) <= 0.35


def test_a_whole_session(folder):
    assert deltavc("init", "repo").returncode == 0
    done = deltavc("commit", "step1", "-m", "One", "--step", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert deltavc("log", "--oneline").stdout.endswith("One\n")
    done = deltavc("log", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_ctrl_c_is_130_and_commits_nothing(project, run, json):
    os.mkfifo("pipe")
    command = [COMMAND, "commit", "step4", "--file", "slow=pipe", *json]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, open("pipe", "wb"):  # opens once the command reads the other end
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err
    assert len(run("log", "--all", "--json").json) == 3


def test_ctrl_c_before_a_command_has_begun_says_nothing():
    program = """
import signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from deltavc.cli.main import main
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_a_module_loads_is_raised_after_it(tmp_path, monkeypatch):
    """A module that throws an interrupt away, as C code in torch and numpy does."""
    module = (
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    raise SystemExit"
    )
    (tmp_path / "takes_no_interrupt.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)

    @interrupts.after_loading()
    def command():
        importlib.import_module("takes_no_interrupt")
        threading.Event().wait(60)  # for a lock: nothing but a signal ends it

    with pytest.raises(KeyboardInterrupt):
        command()
    assert "takes_no_interrupt" in sys.modules
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_that_took_the_place_of_an_interrupt_is_one():
    @interrupts.after_loading()
    def command():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("no length") from None

    with pytest.raises(KeyboardInterrupt):
        command()


def test_where_ctrl_c_is_ignored_it_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.after_loading():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_who_has_seen_enough_is_no_error(project):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        done = subprocess.run([COMMAND, "log"], stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_output_is_no_error(project):
    for closing in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
        assert subprocess.run(f"{COMMAND} log {closing}", shell=True).returncode == 0
        assert subprocess.run(f"{COMMAND} log nothing {closing}", shell=True).returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_is_full_is_an_error(project):
    with open("/dev/full", "w") as full:
        done = subprocess.run([COMMAND, "log"], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert "No space left" in done.stderr
        assert subprocess.run([COMMAND, "lgo"], stderr=full).returncode == 2


def test_a_locale_without_the_letters_is_no_error(project, run):
    run("tag", "版本")
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = deltavc("tag", env=environment)
    assert done.returncode == 0
    assert r"\u7248\u672c" in done.stdout
