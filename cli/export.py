"""deltavc export: write a version for other software, or what changed between two."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.interchange.payload import Checksum, Encoding
    from deltavc.repo import Repo

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"([0-9]{1,15})\s*([A-Za-z]{0,3})")


def _nbytes(ctx: click.Context, param: click.Parameter, given: str | None) -> int | None:
    if given is None:
        return None
    told = _SIZE.fullmatch(given.strip())
    if told is None or told[2].upper() not in _UNITS or int(told[1]) == 0:
        raise click.BadParameter(f"{given!r} is no size: 5GB, 500MB, 200MiB", ctx, param)
    return int(told[1]) * _UNITS[told[2].upper()]


@click.command()
@click.argument("ref")
@click.argument("directory", metavar="DIR")
@click.option("--max-shard-size", metavar="SIZE", callback=_nbytes, help="Cut the weights anew: 5GB, 500MB.")
@click.option("--overwrite", is_flag=True, help="Replace the weights in DIR; files of other names stay.")
@click.option("--delta-dir", is_flag=True, help="Write what changed from A to B, for REF A..B.")
@click.option("--encoding", type=click.Choice(["xor", "overwrite"]), default="xor", show_default=True)
@click.option(
    "--checksum",
    type=click.Choice(["xxh3-128", "blake3", "adler32"]),
    default="xxh3-128",
    show_default=True,
    help="Of a delta directory. The first takes the package xxhash.",
)
@pass_repo
def export(
    repo: Repo,
    out: Output,
    ref: str,
    directory: str,
    max_shard_size: int | None,
    overwrite: bool,
    delta_dir: bool,
    encoding: Encoding,
    checksum: Checksum,
) -> None:
    """Write REF to DIR as a Hugging Face checkpoint, or A..B as a delta directory.

    A checkpoint is .safetensors files, laid out as they were committed unless --max-shard-size is given, and the
    files kept with the version. With --delta-dir, the change from A to B is added to DIR as weight_vNNNNNN, as Miles
    and slime write it: the first builds on what `deltavc export A` writes, each later one on the one before it.

    \b
    Example:
      deltavc export best:reward out --max-shard-size 2GB
      deltavc export step:1..step:2 deltas --delta-dir
    """
    import deltavc

    if not delta_dir:
        if ".." in ref:
            raise click.UsageError("two versions are exported as a delta directory, with --delta-dir; name one without")
        with out.progress(f"exporting {ref}"):
            done = deltavc.export(repo, ref, directory, max_shard=max_shard_size, overwrite=overwrite)
    else:
        old, dots, new = ref.partition("..")
        if not (old and dots and new):
            raise click.UsageError("with --delta-dir, REF is two versions: A..B")
        if overwrite or max_shard_size is not None:
            raise click.UsageError("--overwrite and --max-shard-size are for checkpoints, not for --delta-dir")
        with out.progress(f"exporting {ref}"):
            done = deltavc.export_deltas(repo, old, new, directory, encoding=encoding, algorithm=checksum)
    out.exported(done)
