"""Reading a run's chain of versions, and choosing the way along it. Nothing here writes to a store or to weights."""

from syncline.chain.plan import Avoided, PlanSource, plan
from syncline.chain.reader import ChainReader
from syncline.chain.steps import PUT_BACK, Anchor, AnchorStep, DeltaStep, DiskStep, Plan, SkipStep, Step, StepKey
from syncline.chain.vetoed import Vetoed, Vetoes, mark_of, marked_bad, newest_allowed, undoing

__all__ = [
    "PUT_BACK",
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
    "Vetoes",
    "mark_of",
    "marked_bad",
    "newest_allowed",
    "plan",
    "undoing",
]
