"""Reading a run's chain of versions, and choosing the way along it. Nothing here writes to a store or to weights."""

from syncline.chain.plan import PlanSource, newest_allowed, plan
from syncline.chain.reader import ChainReader
from syncline.chain.steps import Anchor, AnchorStep, DeltaStep, DiskStep, Plan, SkipStep, Step, StepKey

__all__ = [
    "Anchor",
    "AnchorStep",
    "ChainReader",
    "DeltaStep",
    "DiskStep",
    "Plan",
    "PlanSource",
    "SkipStep",
    "Step",
    "StepKey",
    "newest_allowed",
    "plan",
]
