"""The comparison with peers runs, and its tables and plots fit the page; on inputs too small to mean anything."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import compare, compare_page, sharded

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def figures():
    return compare.measure(compare.QUICK)


def test_tables_go_between_the_markers_of_the_page_and_nowhere_else(figures):
    page = compare.PAGE.read_text()
    sections = compare_page.sections(figures)
    filled = compare_page.fill(page, sections)
    assert all(text.strip() in filled for text in sections.values())
    assert compare_page.fill(filled, sections) == filled
    assert compare_page.fill(filled, dict.fromkeys(sections, "")) == compare_page.fill(
        page, dict.fromkeys(sections, "")
    )
    with pytest.raises(KeyError, match="measured: nothing"):
        compare_page.fill(page, {"nothing": "text"})


def test_tables_name_every_peer_that_is_here_and_tell_of_those_that_are_not(figures):
    text = "\n".join(compare_page.sections(figures).values())
    for name in ("zstd", "restic", "moonclip"):
        assert name in text
    assert all(name in text for name in compare.stores())


def test_plots_are_small_images(figures, tmp_path):
    compare_page.plot(figures, tmp_path)
    images = list(tmp_path.iterdir())
    assert {image.name for image in images} <= {image.name for image in compare.IMAGES.iterdir()}
    for image in images:
        assert image.read_bytes().startswith(b"\x89PNG")
        assert image.stat().st_size < 100_000


@pytest.mark.parametrize(
    "script",
    [
        ["lineage.py", "--versions", "3000"],
        ["commit.py", "--mib", "16", "--rounds", "1"],
        pytest.param(["reindex.py", "--versions", "1000"], marks=pytest.mark.long),
        pytest.param(["bisecting.py", "--mib", "1", "--steps", "8"], marks=pytest.mark.long),
    ],
    ids=lambda script: script[0],
)
def test_scripts_that_ask_one_question_answer_it_on_small_input(script):
    ran = subprocess.run([sys.executable, f"bench/{script[0]}", *script[1:]], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert " ms" in ran.stdout


@pytest.mark.long
def test_the_bench_of_many_ranks_runs_and_fits_its_page():
    figures = sharded.measure(sharded.QUICK)
    sections = sharded.sections(figures)
    filled = compare_page.fill(sharded.PAGE.read_text(), sections)
    assert all(text.strip() in filled for text in sections.values())
    assert figures["commits"]["2"]["all"]["put"] == figures["commits"]["1"]["all"]["put"] + 1
