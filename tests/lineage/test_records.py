import pytest

from deltavc.errors import BadPayload
from deltavc.lineage.records import EdgeRecord, PackUse, VersionRecord
from tests.lineage.samples import edge, file, version


@pytest.mark.parametrize("value", [1e16, 1e20, -1e20, 1e21, 1e300, 5e-324, 0.1, 3.0, 2**53 - 1, "NaN"])
def test_every_metric_comes_back(value):
    made = version(metrics={"loss": value}, meta={"x": [value]}, files={"f": file(3)})
    assert VersionRecord.parse(made.body) == made


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_metric_names_that_a_database_cannot_index_are_refused(name):
    with pytest.raises(BadPayload):
        VersionRecord.parse(version(metrics={name: 1}).body)


def test_an_edge_that_was_checked_before_reads_the_same_unchecked():
    for made in (edge(None, "1" * 64), edge("0" * 64, "1" * 64, shared=[PackUse("2" * 64, 5, (1, 2, 3))])):
        assert EdgeRecord.trusted(made.body) == EdgeRecord.parse(made.body) == made
