"""torch.distributed.checkpoint: `dcp.save` commits to a repository, `dcp.load` checks out of it, optimizer included.

    dcp's plan                          version
    tensors and shards, by FQN    ───>  tensors of that name; many ranks' shards make up one
    all other values, by FQN      ───>  files dcp/values.<rank>, one for each rank that has some to write
    the nesting of the names      ───>  file dcp/paths.json

    writer = DeltaWriter(repo, "main")
    for step in range(1000):
        train()
        dcp.save(state, storage_writer=writer.telling(step=step))       # only what changed
    dcp.load(state, storage_reader=DeltaReader(repo, "main@step:118"))   # on any number of ranks

It is a version like any other: `repo.checkout` gives its tensors, replicas follow it, and what `repo.commit` made can
be loaded too.
"""

from deltavc.integrations.dcp_reader import DeltaReader
from deltavc.integrations.dcp_writer import DeltaWriter

__all__ = ["DeltaReader", "DeltaWriter"]
