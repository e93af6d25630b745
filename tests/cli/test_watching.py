"""Watching a run: versions as they land, layers compared, plots."""


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
