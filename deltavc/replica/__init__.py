"""Live weights: staged while they serve, swapped in a blink, taken back, and proven.

with repo.replica(model, at="step:118") as r:
    r.stage("main")                       # beside serving
    r.apply()                             # the pause
    with r.reading() as version: ...      # no pause inside
"""

from deltavc.replica.applied import Applied, Span, Staged
from deltavc.replica.following import ReplicaFollower
from deltavc.replica.live import ReplicaState
from deltavc.replica.replica import Replica

__all__ = ["Applied", "Replica", "ReplicaFollower", "ReplicaState", "Span", "Staged"]
