"""deltavc stats --plot: a picture of a run, whatever its names, and never half of one."""

import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from deltavc.cli.main import main
main(sys.argv[1:])
"""


def words(path):
    return [element.text for element in xml.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_a_plot_shows_metrics_and_layers_over_steps(run, project, folder):
    out = run("stats", "--plot", "run.svg").stdout
    assert out.splitlines()[-1] == "drew 3 versions of main in run.svg"
    assert out.startswith("versions    3\n")
    shown = words(folder / "run.svg")
    assert {"main: 3 versions", "bytes stored", "share changed", "loss", "layer", "step"} <= set(shown)


def test_metrics_can_be_chosen_and_those_left_out_are_named(run, project, folder):
    names = [f"m{number}" for number in range(6)]
    run("commit", "step4", *(word for name in names for word in ("--metric", f"{name}=1")))
    out = run("stats", "--plot", "run.svg").stdout
    assert out.splitlines()[-1] == "metrics left out: m3, m4, m5"
    assert "versions from the first" in words(folder / "run.svg")  # one has no step
    told = run("stats", "--plot", "run.svg", "--metric", "m5", "--metric", "loss", "--json").json
    assert {"m5", "loss"} <= set(words(folder / "run.svg"))
    assert "m0" not in words(folder / "run.svg")
    assert told["num_versions"] == 4
    assert told["plot"]["drawn"] == ["m5", "loss"]
    assert told["plot"]["samples"][2]["layers"]["layer"] == pytest.approx(3 / 1056)


def test_any_name_can_be_drawn(run, project, folder):
    names = ["$\\frac$", "<b>&", "雪\U0001f600", "x" * 200, "nan\n"]
    run("commit", "step4", *(word for name in names for word in ("--metric", f"{name}=nan")))
    run("stats", "--plot", "run.svg", *(word for name in names for word in ("--metric", name)))
    shown = words(folder / "run.svg")
    assert {"$\\frac$", "<b>&", "雪\U0001f600", "nan\\n"} <= set(shown)
    assert any(re.fullmatch("…x{39}", text or "") for text in shown)


@pytest.mark.parametrize(("kind", "starts"), [("PNG", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_picture_is_of_the_kind_that_its_name_says(run, project, folder, kind, starts):
    run("stats", "--plot", f"run.{kind}", "--ref", "step:1")
    assert (folder / f"run.{kind}").read_bytes().startswith(starts)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--plot", "run.gif"], 2, "run.gif is none by its name"),
        (["--plot", "nowhere/run.png"], 2, "in a directory that does not exist"),
        (["--plot", "run.png", "--metric", "lost"], 2, "has a metric 'lost'; there are: loss"),
        (["--plot", "run.png", "--ref", "mian"], 1, "unknown ref 'mian'"),
        (["--plot", "run.png", "--db", "none"], 1, "database"),
        (["--metric", "loss"], 2, "are for --plot"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_drawn_is_refused_and_leaves_nothing(run, project, folder, args, code, says):
    before = sorted(folder.iterdir())
    assert says in run("stats", *args, code=code).stderr
    assert sorted(folder.iterdir()) == before


def test_without_matplotlib_the_error_says_how_to_install_it(run, project, folder):
    command = [sys.executable, "-c", WITHOUT_MATPLOTLIB, "stats", "--plot", "run.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: plots need matplotlib\nhint: Install it: pip install 'deltavc[plot]'\n"
