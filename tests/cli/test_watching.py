"""Watching a run: versions as they land, layers compared, plots."""

import json

import pytest
from deltavc.cli import output


def test_layers_are_summed_up(run, project):
    out = run("diff", "step:1", "step:3", "--by-layer").stdout.splitlines()
    assert out[0].split() == ["layer", "tensors", "changed", "of", "share", "largest", "step"]
    assert [line.split()[:5] for line in out[1:]] == [
        ["layer", "1", "of", "2", "6"],
        ["total", "1", "of", "2", "6"],
    ]
    found = run("diff", "step:1", "step:3", "--by-layer", "--json").json
    assert [(layer["name"], layer["num_changed"], layer["changed_elements"]) for layer in found["layers"]] == [
        ("layer", 1, 6)
    ]
    assert found["total"]["changed_elements"] == 6


def test_layers_that_are_equal_are_a_line_unless_all_are_asked_for(run, project):
    assert "1 layer is unchanged" in run("diff", "main", "main", "--by-layer").stdout
    assert "0 of 2" in run("diff", "main", "main", "--by-layer", "--all").stdout.splitlines()[1]


def test_a_number_with_a_dash_is_a_limit(run, project):
    assert run("log", "--oneline", "-2").stdout == run("log", "--oneline", "-n", "2").stdout
    assert run("log", "-0").stdout == ""
    assert "not in the range" in run("log", "-n", "-1", code=2).stderr


@pytest.mark.parametrize("lines", [1, 2, 1000])
def test_a_log_that_is_printed_bit_by_bit_is_the_same(run, project, monkeypatch, lines):
    whole = [run("log").stdout, run("log", "--graph").stdout]
    monkeypatch.setattr(output, "_LINES", lines)
    assert [run("log").stdout, run("log", "--graph").stdout] == whole
    for args in ([], ["-1"], ["-0"]):
        told = run("log", *args, "--json")
        assert told.stdout == json.dumps(told.json, indent=2) + "\n"
