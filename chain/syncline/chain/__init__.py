"""Reading a run's chain of versions, and choosing the way along it. Nothing here writes to a store or to weights."""

from syncline.chain.plan import Avoided, PlanSource, Vetoed, marked_bad, newest_allowed, plan
from syncline.chain.reader import ChainReader
from syncline.chain.steps import Anchor, AnchorStep, DeltaStep, DiskStep, Plan, SkipStep, Step, StepKey

__all__ = [
    "Anchor",
    "AnchorStep",
    "Avoided",
    "ChainReader",
    "DeltaStep",
    "DiskStep",
    "Plan",
    "PlanSource",
    "SkipStep",
    "Step",
    "StepKey",
    "Vetoed",
    "marked_bad",
    "newest_allowed",
    "plan",
]
