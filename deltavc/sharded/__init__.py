"""Many ranks, one version: what each of them holds a part of, committed together or not at all.

    rank 0   rows 0-3 ──diff, encode, upload──> pack ──┐  pack ids, sums, counts
    rank 1   rows 4-7 ──diff, encode, upload──> pack ──┼──> rank 0: edge, version ──> ref entry
    rank 2   norm     ──diff, encode, upload──> pack ──┘                              (the commit)

No rank ever holds the whole model, and what travels between them does not grow with the bytes of weights.

    with repo.writer("main", group=torch.distributed.group.WORLD) as w:
        w.commit(model, step=12)          # on every rank
"""
