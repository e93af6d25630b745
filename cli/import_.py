"""deltavc import: take in other people's checkpoints, in order, as versions of a branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.interchange.found import FilesKept
    from deltavc.repo import Repo


@click.command("import")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--branch", default="main", show_default=True, help="Made if there is none of this name.")
@click.option(
    "--files",
    type=click.Choice(["none", "small", "all"]),
    default="small",
    show_default=True,
    help="Which other files to keep: config and tokenizer, or optimizer and RNG state too.",
)
@click.option("--delta-dir", metavar="DIR", help="Import weight_v000001, ... of Miles or slime instead of PATHs.")
@click.option("--base", metavar="REF|PATH", help="With --delta-dir: what its first version builds on.")
@click.option("--dry-run", is_flag=True, help="Only say what would be committed.")
@pass_repo
def import_(
    repo: Repo,
    out: Output,
    paths: tuple[str, ...],
    branch: str,
    files: FilesKept,
    delta_dir: str | None,
    base: str | None,
    dry_run: bool,
) -> None:
    """Commit checkpoints in the order of their steps.

    A PATH is a Trainer's output folder with checkpoint-N in it, another folder of checkpoints, a checkpoint (a
    directory of .safetensors files, a DCP directory, a .safetensors or .pt file), or a pattern. Steps come from names,
    metrics from trainer_state.json. Checkpoints that the branch has are compared and passed over, so it may be run
    again, after Ctrl-C or when there are more.

    \b
    Example:
      deltavc import out
      deltavc import 'run/step-*' --branch pretraining
      deltavc import --delta-dir deltas --base step:0
    """
    import deltavc

    if (delta_dir is None) == (not paths):
        raise click.UsageError("name the checkpoints, or a delta directory with --delta-dir")
    if (delta_dir is None) != (base is None):
        raise click.UsageError("--delta-dir and --base go together: deltas need what they build on")
    with out.steps() as progress:
        if delta_dir is not None and base is not None:
            done = deltavc.import_deltas(repo, delta_dir, base, branch, dry_run=dry_run, progress=progress)
        else:
            done = deltavc.import_checkpoints(repo, paths, branch, files=files, dry_run=dry_run, progress=progress)
    out.imported(done)
