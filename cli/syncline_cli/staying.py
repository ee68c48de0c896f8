"""Why retention takes no version: which need keeps the oldest version, in words for `syncline gc`. Pure; decides nothing."""

from __future__ import annotations

from syncline_cli.output import age, counted
from syncline_distributor.retention import keep, walk_down
from syncline_distributor.settings import RetentionSettings
from syncline_distributor.sweeper import Survey


def why_versions_stay(survey: Survey, settings: RetentionSettings, prefix: str) -> str:
    """What needs the oldest version, or why it stays though nobody does. `prefix` is the view's, left out of names."""
    chain = survey.chain
    if not chain.bases:
        return "no version was committed yet"
    oldest = min(chain.bases)
    if oldest not in survey.kept.versions:
        return f"nobody needs version {oldest}, but nothing younger than {age(settings.lease_period_s)} is deleted"

    def reached(*needs: int, keep_versions: int = 0) -> bool:
        kept = keep(chain, needs, keep_anchors=settings.keep_anchors, keep_versions=keep_versions)
        return oldest in kept.versions

    if reached():
        usable = [v for v in walk_down(chain) if v in chain.anchors and v not in chain.vetoed][: settings.keep_anchors]
        return (
            f"version {oldest} and all above it stay for whoever joins, who starts from one of the newest "
            f"{counted(settings.keep_anchors, 'anchor')}: {', '.join(map(str, usable))}; "
            "`syncline-distributor serve` writes more"
        )
    if reached(keep_versions=settings.keep_versions):
        return f"version {oldest} and all above it stay for the newest {settings.keep_versions} (--keep-versions)"
    needs = survey.readers.needs(settings.max_ttl_s) or ()
    who = [
        f"{key.removeprefix(prefix)} needs version {need}" for key, need in needs if need is not None and reached(need)
    ]
    return f"version {oldest} and all above it stay: {', '.join(who)}"
