"""The model of docs/scaling.md: it is what the page says that it prints, and what was measured is what it predicts."""

import contextlib
import io
import json

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "scaling.md"
MEASURED = json.loads((ROOT / "bench" / "results" / "sharded.json").read_text())
SIZES = [str(size) for size in MEASURED["plan"]["ranks"]]
KINDS = {
    "commits": (MEASURED["plan"]["mib"] << 20, MEASURED["plan"]["tensors"]),
    "many": (MEASURED["plan"]["many"] * 256, MEASURED["plan"]["many"]),
}


@pytest.fixture(scope="module")
def page():
    """The names that the page's blocks make, and what each block prints."""
    names, printed = {}, []
    for line, code in blocks(PAGE, "python"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("\n" * line + code, PAGE, "exec"), names)
        printed.append(out.getvalue())
    return names, printed


def test_the_page_shows_what_its_model_prints(page):
    shown = [text for _, text in blocks(PAGE, "text")]
    assert shown == [text for text in page[1] if text]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_commit_asks_for_what_the_model_says(page, kind, size):
    names, _ = page
    run, measured = names["Run"](*KINDS[kind], int(size)), MEASURED[kind][size]
    assert measured["all"]["put"] == run.puts(0.003)
    assert measured["first"]["statements"] == names["STATEMENTS"]
    assert measured["all"]["gloo_bytes"] / run.ranks == pytest.approx(run.received(), rel=0.03)
    assert measured["all"]["questions"] / run.ranks <= names["QUESTIONS"] + 1
    assert measured["cpu"] == pytest.approx(run.cpu(), rel=0.3)


@pytest.mark.parametrize("size", SIZES)
def test_a_checkout_asks_for_what_the_model_says(page, size):
    run = page[0]["Run"](*KINDS["commits"], int(size))
    # Ranges end where packs do: one more on some ranks.
    assert MEASURED["checkouts"][size]["all"]["get_packs"] == pytest.approx(
        run.ranks * run.gets(run.ranks), abs=run.ranks
    )


def test_what_ranks_tell_each_other_costs_what_the_model_says(page):
    names, _ = page
    largest = MEASURED["arranging"][-1]
    assert largest["told_bytes"] == pytest.approx(names["TOLD"], rel=0.2)
    assert largest["read_us"] + largest["arrange_us"] == pytest.approx(names["ARRANGED"] * 1e6, rel=0.4)
    assert largest["memory_bytes"] == pytest.approx(names["KEPT"], rel=0.4)
    for each in MEASURED["records"]:
        run = names["Run"](0, each["tensors"], each["ranks"])
        assert each["edge_bytes"] == pytest.approx(run.edge(), rel=0.1)
        assert each["seconds"] < 0.1
