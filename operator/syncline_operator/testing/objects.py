"""Small objects that an API server takes as they are, and changed copies of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

ABSENT = object()
"""In place of a value: the field is taken away."""

_STORE: Mapping[str, Any] = {
    "uri": "s3://weights/team-a",
    "endpoint": "https://s3.example.com",
    "credentialsSecretRef": {"name": "weights"},
}


def training_run(name: str = "run", /, **changes: Any) -> dict[str, Any]:
    """A TrainingRun with what is required; `changes` are paths with `__` for dots, below spec."""
    spec = {
        "weightStore": dict(_STORE),
        "checkpointSource": {"persistentVolumeClaim": {"claimName": "checkpoints"}},
    }
    return _object("TrainingRun", name, spec, changes)


def rollout_pool(name: str = "pool", /, **changes: Any) -> dict[str, Any]:
    """A RolloutPool with what is required; `changes` are paths with `__` for dots, below spec."""
    spec = {
        "weightSource": {"runName": "run", "weightStore": dict(_STORE)},
        "engine": {"type": "vLLM"},
        "template": {"spec": {"containers": [{"name": "engine", "image": "example.com/engine:1"}]}},
    }
    return _object("RolloutPool", name, spec, changes)


def changed(found: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of an object with other values at these paths, `__` for dots, below spec."""
    made: dict[str, Any] = copy.deepcopy(dict(found))
    for path, value in changes.items():
        *above, last = path.split("__")
        at = made["spec"]
        for part in above:
            at = at.setdefault(part, {})
        if value is ABSENT:
            at.pop(last, None)
        else:
            at[last] = value
    return made


def _object(kind: str, name: str, spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    plain = {"apiVersion": "syncline.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return changed(plain, **changes)
