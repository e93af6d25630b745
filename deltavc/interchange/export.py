"""Exporting a version as a Hugging Face directory: what `from_pretrained` and inference engines load."""

from __future__ import annotations

from pathlib import Path

from deltavc.interchange.export_deltas import Exported
from deltavc.repo import Repo
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.weights.output import write_checkpoint


def export(
    repo: Repo,
    ref: str,
    directory: str | Path,
    *,
    max_shard: int | None = None,
    overwrite: bool = False,
    memory: int = DEFAULT_MEMORY,
) -> Exported:
    """Write a version's weights, proven, as .safetensors files, with the files that are kept with it.

    Args:
        directory: new or empty, unless `overwrite`: then its weights are replaced, and files of other names stay.
        max_shard: bytes of tensors in a file; None: as they lay in the files that were committed, up to 5 GB each
            where there were none.
        memory: bytes it may take beyond the weights.

    Raises:
        BadCheckpoint: the directory is not empty or cannot be written to; tensors that the files cannot hold.
        UnknownRef, AmbiguousRef, NoPath, Corruption; StoreFull, StoreDenied
    """
    state = repo.checkout(ref, memory=memory)
    version = repo._index.version(state.version)
    layout = repo._access(memory).objects.layout(version.record.layout, version.id)
    extras = {name: repo._file_writer(version.id, name) for name in version.record.files}
    source = version.record.source
    written = write_checkpoint(
        directory, state.items(), layout, source, extras, overwrite=overwrite, max_shard=max_shard
    )
    return Exported(version.id, str(directory), len(written), sum(path.stat().st_size for path in written))
