"""The series of a run says what diffs would say, without reading weights."""

import secrets

import pytest
import torch

import deltavc
from deltavc import opening
from tests.faults import faulty


def model(seed=0):
    """Three layers, one of them wide enough for several frames' worth of sparse changes."""
    generator = torch.Generator().manual_seed(seed)
    names = {"embed.weight": 5000, "layers.0.w": 4000, "layers.0.b": 3000, "layers.1.w": 6000}
    return {name: torch.randn(size, generator=generator).bfloat16() for name, size in names.items()}


def nudge(tensor, share, generator):
    bits = tensor.view(torch.int16)
    bits[torch.rand(bits.numel(), generator=generator) < share] ^= 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose steps change little, much, everything and nothing."""
    folder = tmp_path_factory.mktemp("series") / "repo"
    state, generator = model(), torch.Generator().manual_seed(1)
    with deltavc.init(folder) as repo, repo.writer("main") as writer:
        writer.commit(state, step=0, metrics={"loss": 3.0})
        for step, share in enumerate((0.002, 0.01, 0.0, 1.0, 0.003), start=1):
            nudge(state["layers.0.w"], share, generator)
            nudge(state["layers.1.w"], share / 2, generator)
            writer.commit(state, step=step, metrics={"loss": 3.0 - step, "rare": 1.0} if step == 2 else {"loss": 1.0})
        yield repo, folder


def test_shares_of_layers_are_those_of_diffs(run):
    repo, _ = run
    series = repo.series()
    assert (series.num_versions, len(series.samples)) == (6, 6)
    assert series.layers == ("embed", "layers.0", "layers.1")
    assert series.metrics == ("loss", "rare")
    first, *rest = series.samples
    assert (first.density, first.layers) == (None, None)
    for sample in rest:
        step = sample.version.step
        diff = repo.diff(f"step:{step - 1}", f"step:{step}")
        assert sample.density == pytest.approx(diff.total.density)
        assert sample.layers == pytest.approx({layer.name: layer.density for layer in diff.by_layer()}, abs=0.02)
        assert sample.averaged is False or step == 4
        assert sample.nbytes == sample.version.stored_bytes


def test_what_dense_frames_do_not_count_is_shared_out_and_said():
    state, generator = model(), torch.Generator().manual_seed(2)
    with deltavc.init(f"memory://series-{secrets.token_hex(4)}") as repo, repo.writer(codec="xor-zstd") as writer:
        writer.commit(state)
        nudge(state["layers.0.w"], 0.1, generator)
        nudge(state["layers.1.w"], 0.3, generator)
        writer.commit(state)
        nudge(state["embed.weight"], 0.1, generator)
        writer.commit(state)
        _, two, one = repo.series().samples
        assert two.averaged
        total = two.density * two.version.num_lanes
        lanes = {"embed": 5000, "layers.0": 7000, "layers.1": 6000}
        assert sum(two.layers[layer] * count for layer, count in lanes.items()) == pytest.approx(total)
        assert two.layers["embed"] == 0
        assert not one.averaged
        assert one.layers["embed"] == pytest.approx(repo.diff("main~1", "main").total.changed_elements / 5000)


def test_only_the_ends_of_packs_are_read(run, monkeypatch):
    repo, folder = run
    store = faulty(str(folder))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.open(folder) as other:
        other.log()
        store.calls.clear()
        assert other.series() == repo.series()
    packs = [key for name, key in store.calls if key.startswith("packs/")]
    assert len(packs) == 4  # one for each step that changed anything


def test_long_histories_are_sampled_evenly_from_end_to_end(run):
    repo, _ = run
    steps = [sample.version.step for sample in repo.series(samples=3).samples]
    assert steps == [0, 2, 5]
    assert [sample.version.step for sample in repo.series("step:0").samples] == [0]
    with pytest.raises(ValueError, match="samples=1"):
        repo.series(samples=1)
    with pytest.raises(deltavc.errors.UnknownRef):
        repo.series("mian")


def test_what_was_not_kept_is_not_known_and_damage_is_an_error(tmp_path):
    state = model()
    with deltavc.init(tmp_path / "repo") as repo:
        repo.commit(state)
        state["layers.0.w"][0] += 1
        version = repo.commit(state)
        (use,) = next(edge for edge in repo.edges(version.id) if edge.base).packs
        pack = tmp_path / "repo" / use.key
        body = pack.read_bytes()
        pack.chmod(0o644)
        pack.write_bytes(body[:-60] + b"x" * 60)
        with pytest.raises(deltavc.errors.CorruptObject):
            repo.series()
        pack.unlink()
        assert repo.series().samples[-1].layers is None


def test_names_that_number_something_else_than_layers_are_one_layer():
    state = {f"{number}.w": torch.zeros(2) for number in range(1001)}
    with deltavc.init(f"memory://series-{secrets.token_hex(4)}") as repo:
        repo.commit(state)
        state["7.w"][0] = 1
        repo.commit(state)
        assert repo.series().samples[1].layers == {"all tensors": pytest.approx(1 / 2002)}


def test_a_series_without_a_database_asks_for_one(run):
    _, folder = run
    with deltavc.open(folder, db="none") as other, pytest.raises(deltavc.errors.DatabaseNeeded):
        other.series()
