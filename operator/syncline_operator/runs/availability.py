"""Whether the distributor runs, and what keeps it from it: the condition DistributorAvailable, from its pod.

The words of a scheduler or a kubelet are passed on; which reason they mean is told by as few of them as possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from syncline_operator.api.conditions import Finding
from syncline_operator.kube.resources import DEPLOYMENTS, VOLUME_CLAIMS
from syncline_operator.runs.service import child_name
from syncline_operator.runs.values import Observed

WORDS = 400
"""Characters of what a container said last."""
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG = {"CreateContainerConfigError"}
_CRASH = {"CrashLoopBackOff", "RunContainerError", "CreateContainerError", "StartError"}


def availability(observed: Observed) -> Finding:
    """What is found of the condition."""
    if observed.failure is not None:
        return Finding(observed.failure.reason, observed.failure.words)
    if observed.namespace_ends:
        namespace = observed.run.metadata.namespace
        return Finding("NamespaceTerminating", f"namespace {namespace} is being deleted, nothing can be made in it")
    if observed.answer is not None:
        return Finding("DistributorRunning", "The distributor runs and answers.")
    pod = newest(observed.pods)
    if pod is None:
        return _without_pod(observed)
    return _of_pod(pod, observed)


def newest(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The pod that counts: the newest of those that are not being deleted."""
    staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    return max(staying, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)


def _without_pod(observed: Observed) -> Finding:
    """A Deployment says of pods that could not be made why not: a quota, Pod Security, a webhook."""
    if observed.pods:
        return Finding("DistributorStarting", "The old pod ends; the next starts after it.")
    for key, document in observed.children.items():
        if key.resource == DEPLOYMENTS:
            for condition in document.get("status", {}).get("conditions", ()):
                if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                    return Finding("ChildRefused", str(condition.get("message") or "its pod cannot be made"))
    return Finding("DistributorStarting", "Its pod is not made yet.")


def _of_pod(pod: Mapping[str, Any], observed: Observed) -> Finding:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _unscheduled(str(condition.get("message", "")), observed)
    for container in status.get("containerStatuses", ()):
        state, before = container.get("state", {}), container.get("lastState", {})
        waiting = state.get("waiting", {})
        reason, words = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _IMAGE:
            return Finding("ImageUnavailable", f"{container.get('image', 'the image')}: {words or reason}")
        if reason in _CONFIG:
            return Finding("ConfigMissing", f"Pod {name}: {words or reason}")
        ended = state.get("terminated") or (before.get("terminated") if reason in _CRASH or not state else None)
        if ended is not None or reason in _CRASH:
            return Finding("DistributorCrashing", _last_words(name, ended or {}, words))
        if reason:
            return Finding("DistributorStarting", f"Pod {name}: {words or reason}")
    if status.get("phase") in ("Failed", "Unknown"):
        words = status.get("message") or status.get("reason") or status["phase"]
        return Finding("DistributorCrashing", f"Pod {name}: {words}")
    return Finding("DistributorStarting", f"Pod {name} is there; its /status does not answer yet: {observed.silence}")


def _unscheduled(words: str, observed: Observed) -> Finding:
    lower = words.lower()
    if "persistentvolumeclaim" in lower and "not found" in lower:
        return Finding("ConfigMissing", words)
    if "persistentvolumeclaim" in lower or "volume node affinity" in lower:
        claim = next((d for k, d in observed.children.items() if k.resource == VOLUME_CLAIMS), {})
        phase = claim.get("status", {}).get("phase", "not there")
        return Finding("VolumePending", f"PersistentVolumeClaim {child_name(observed.run)} is {phase}: {words}")
    return Finding("PodUnschedulable", words or "no node takes its pod")


def _last_words(name: str, ended: Mapping[str, Any], words: str) -> str:
    said = str(ended.get("message", "")).strip() or ended.get("reason", "") or words
    code = ended.get("exitCode")
    return f"Pod {name} ended{'' if code is None else f' with {code}'}; it said last: {said[-WORDS:]}"
