"""Finding the version that broke something: a search over the lineage, and weights that follow it by deltas.

    good ── o ── o ── o ── x ── x ── bad        marks: what is known      (marks, journal)
                 try this one next              search: which one to try  (search, inquiry)
                 its weights: a delta away      workbench, live

The search knows nothing of weights, and what moves weights nothing of the search.
"""
