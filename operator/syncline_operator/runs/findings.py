"""Conditions of a TrainingRun that the distributor's `/status` tells: store, conditional writes, publishing, suspension.

Errors are told apart by the names of their classes, which `/status` spells, never by their words where a name will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from syncline_operator.api.conditions import Finding
from syncline_operator.api.run import PublisherKind, TrainingRunSpec
from syncline_operator.runs.values import Observed

_LOOPS = ("observe", "watch", "keep", "sweep")
"""In the order in which they are believed: who only reads is asked first."""


def store_finding(observed: Observed) -> Finding:
    """StoreReachable."""
    answer = observed.answer
    if answer is None:
        return _silent(observed)
    for kind, words in _faults(answer):
        if _of_source(observed.run.spec, words):
            continue
        lower = words.lower()
        if kind == "StoreDenied":
            return Finding("StoreDenied", words)
        if kind == "NotFound" and "bucket is not there" in lower:
            return Finding("BucketMissing", words)
        if kind == "StoreUnavailable":
            return Finding("CertificateRefused" if "certificate" in lower else "StoreUnreachable", words)
    return Finding("StoreAnswers", f"{_store(answer).get('url', 'The store')} answers.")


def conditional_finding(observed: Observed) -> Finding:
    """ConditionalWritesSupported."""
    if observed.answer is None:
        return _silent(observed)
    match _store(observed.answer).get("conditional_writes"):
        case True:
            return Finding("ProbePassed", "Of racing creates exactly one won, and a stale condition was refused.")
        case False:
            return Finding("SingleWriter", "The store ignores conditions: never run two writers of this run.")
        case _:
            return Finding("ProbeFailed", "The store was not asked yet, or did not answer.")


def publishing_finding(observed: Observed) -> Finding:
    """Publishing."""
    answer, spec = observed.answer, observed.run.spec
    if answer is None:
        return _silent(observed)
    writer, source = _part(answer, "writer"), _part(answer, "source")
    known = observed.run.status.lineage if observed.run.status is not None else None
    if known is not None and (lineage := answer.get("lineage")) not in (None, known):
        words = f"run {observed.run.run} in the store is another training now: lineage {lineage}, not {known}"
        return Finding("LineageChanged", words)
    if fenced := writer.get("fenced"):
        return Finding("Fenced", str(fenced))
    for kind, words in _faults(answer):
        if kind == "LineageChanged":
            return Finding("LineageChanged", words)
        if kind == "DiskFull" or "No space left on device" in words:
            return Finding("StateFull", words)
    if spec.publisher is PublisherKind.SDK:
        if waits := answer.get("waits_for"):
            return Finding("RunMissing", str(waits))
        return Finding("TrainerPublishes", "The trainer publishes itself.")
    if spec.suspend:
        return Finding("Suspended", "spec.suspend is true.")
    if not source:
        return Finding("NotObserved", "The service starts to watch the source.")
    return _source_finding(spec, source, answer)


def suspended_finding(observed: Observed) -> Finding:
    """Suspended."""
    spec, answer = observed.run.spec, observed.answer
    if not spec.suspend:
        return Finding("NotRequested", "spec.suspend is false.")
    if spec.publisher is PublisherKind.SDK:
        return Finding("Suspending", "publisher SDK: the trainer publishes by itself; pause it there.")
    if answer is None:
        return Finding("Suspending", f"The distributor does not answer: {observed.silence}")
    if answer.get("writer") is not None:
        return Finding("Suspending", "The version that is on its way is still written.")
    return Finding("SuspendRequested", "Nothing is published; anchors, retention and status go on.")


def _source_finding(spec: TrainingRunSpec, source: Mapping[str, Any], answer: Mapping[str, Any]) -> Finding:
    waits, refused = source.get("waits_for"), _part(source, "refused")
    failed = _part(answer, "loops").get("watch")
    if failed and _of_source(spec, str(failed)):
        return Finding("SourceMissing", str(failed))
    if not source.get("listable"):
        if failed:
            return Finding("PublishFailing", str(failed))
        if source.get("phase") == "starting":
            return Finding("NotObserved", f"The service waits for {waits}.")
        return Finding("SourceMissing", str(waits))
    if waits:
        return Finding("SourceEmpty", str(waits))
    if error := source.get("error") or failed:
        return Finding("PublishFailing", str(error))
    if (name := str(source.get("newest_refused"))) in refused:
        kind = _part(source, "refused_as").get(name)
        if kind != "SourceNotReady":  # it changed while it was read, and comes again when it rests
            reason = "NonFiniteRefused" if kind == "NonFiniteWeights" else "CheckpointRefused"
            return Finding(reason, f"{name}: {refused[name]}")
    return Finding("CheckpointsPublished", "Every complete checkpoint is published, or on its way.")


def _of_source(spec: TrainingRunSpec, words: str) -> bool:
    """Whether an error is about the bucket that checkpoints come from."""
    source = spec.checkpoint_source.object_storage if spec.checkpoint_source is not None else None
    return source is not None and source.uri in words and spec.weight_store.uri not in words.replace(source.uri, "")


def _faults(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kinds, words = _part(answer, "faults"), _part(answer, "loops")
    for name in _LOOPS:
        if kinds.get(name):
            yield str(kinds[name]), str(words.get(name))
    source = _part(answer, "source")
    if source.get("error"):
        yield str(source.get("error_kind")), str(source["error"])


def _silent(observed: Observed) -> Finding:
    return Finding("DistributorSilent", f"The distributor does not answer: {observed.silence}")


def _store(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(answer, "store")


def _part(held: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A struct of an answer; empty where it is null."""
    found: Mapping[str, Any] = held.get(name) or {}
    return found
