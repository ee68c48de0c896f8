"""The kinds of `syncline.dev/v1alpha1` as typed values: the one source of `crds/`, and how the operator reads objects.

Knows no cluster: nothing here asks or tells an API server anything.
"""

from syncline_operator.api.pool import RolloutPool
from syncline_operator.api.run import TrainingRun

__all__ = ["RolloutPool", "TrainingRun"]
