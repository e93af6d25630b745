"""deltavc push: a version into the live weights of inference engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import Settings, pass_repo, seconds
from .output import Output

if TYPE_CHECKING:
    from deltavc.integrations.engines_push import Engine, Running
    from deltavc.repo import Repo

_STEPS = 5
"""How often workers wait for each other while they carry out one order, at most."""

_LONG_PAUSE = 3600.0
"""Seconds that writing every weight anew may take."""


@click.command()
@click.argument("ref")
@click.option("--sglang", "sglang", multiple=True, metavar="URL", help="An SGLang server. May be repeated.")
@click.option("--vllm", "vllm", multiple=True, metavar="URL", help="A vLLM server. May be repeated.")
@click.option("--at", metavar="REF", help="The version that the engines were started with; for the first push to them.")
@click.option(
    "--running",
    type=click.Choice(["requeue", "abort", "keep"]),
    default="requeue",
    show_default=True,
    help="Requests that run: computed again with the new weights, ended, or kept with caches of the old ones.",
)
@click.option("--long-pause", is_flag=True, help="Write in the pause what does not fit into the staging memory.")
@click.option(
    "--staging-bytes",
    type=click.IntRange(min=1),
    help="Staging memory of each worker; an eighth of its weights at first.",
)
@click.option(
    "--timeout",
    callback=seconds,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long workers wait for each other.",
)
@click.option("--token", envvar="DELTAVC_ENGINE_TOKEN", help="The engines' API key.  [env: DELTAVC_ENGINE_TOKEN]")
@pass_repo
def push(
    repo: Repo,
    out: Output,
    ref: str,
    sglang: tuple[str, ...],
    vllm: tuple[str, ...],
    at: str | None,
    running: Running,
    long_pause: bool,
    staging_bytes: int | None,
    timeout: float,
    token: str | None,
) -> None:
    """Bring running engines to REF: all workers of all of them, or none.

    Stages on all workers while they serve, then pauses the engines, swaps, stamps their weight version with the
    version's id, and resumes them. If a worker fails, all are put back to the version that they served. The engines
    have to be started with what takes versions in their workers, and to reach the repository under the same URL.

    \b
    Example:
      deltavc push main --sglang http://localhost:30000 --at step:0
      deltavc push main~1 --vllm http://a:8000 --vllm http://b:8000
    """
    from deltavc.integrations.engines import Order
    from deltavc.integrations.engines_push import push as push_to
    from deltavc.integrations.sglang_client import SGLang
    from deltavc.integrations.vllm_client import VLLM

    if not sglang and not vllm:
        raise click.UsageError("there is no engine to push to: name one with --sglang URL or --vllm URL")
    settings = click.get_current_context().ensure_object(Settings)
    patience = max(timeout * _STEPS, _LONG_PAUSE if long_pause else 0)
    engines: list[Engine] = [
        *(SGLang(url, patience, token) for url in dict.fromkeys(sglang)),
        *(VLLM(url, patience, token) for url in dict.fromkeys(vllm)),
    ]
    order = Order(
        "stage",
        repo.url,
        db=settings.db,
        storage_options=settings.storage_options,
        timeout=timeout,
        staging_bytes=staging_bytes,
        long_pause=long_pause,
    )
    with out.progress(f"pushing {ref}"):
        pushed = push_to(repo, ref, engines, order, at=at, running=running)
    out.pushed(pushed)
