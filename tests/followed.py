"""What is in a followed directory, and whether it is what it says."""

import json

from safetensors import safe_open

from tests import states


def weights(place):
    """The tensors of the directory's .safetensors files."""
    found = {}
    for path in sorted(place.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    return found


def label(place):
    return json.loads((place / "VERSION").read_text())


def files_in(place):
    """Every file of the directory but our own and what they hold."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not {"VERSION", ".deltavc-follow"} & set(path.relative_to(place).parts)
    }


def check(repo, place, version):
    """The directory is whole, says that it is this version, and is it."""
    assert not (place / "MOVING").exists()
    assert [path.name for path in (place / ".deltavc-follow").iterdir() if path.name == "new"] == []
    told = label(place)
    assert told["version"] == repo.resolve(version)
    assert told["fingerprint"] == repo.version(version).fingerprint
    assert told["repository"] == repo.id
    assert states.same(weights(place), repo.checkout(version))
    assert set(files_in(place)) == set(told["files"])
    for name in repo.version(version).files:
        assert (place / name).read_bytes() == repo.read_file(version, name)
