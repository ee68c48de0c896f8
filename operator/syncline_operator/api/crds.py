"""The two CustomResourceDefinitions, made from the models: names, columns, subresources, schema. `crds/` holds what this writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from syncline_operator.api.objects import GROUP, VERSION
from syncline_operator.api.pool import RolloutPool
from syncline_operator.api.run import TrainingRun
from syncline_operator.api.schema import Part, structural_schema

WRITTEN = "# Written by `make crds` from operator/syncline_operator/api; edit that, and write this again.\n"
LINE = 120


@dataclass(frozen=True, slots=True)
class Column:
    """What `kubectl get` prints."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Only with -o wide."""
    words: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it stands in a definition."""
        return {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.words,
            **({"priority": 1} if self.wide else {}),
        }


def _condition(name: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'


_HEALTH = (
    Column("Healthy", _condition("Ready", "status"), words="Whether all that is asked for is so."),
    Column("Reason", _condition("Ready", "reason"), words="Why, in one word; docs/kubernetes.md says what to do."),
)
_AGE = (
    Column("Age", ".metadata.creationTimestamp", "date", words="Since when the object is there."),
    Column("Message", _condition("Ready", "message"), wide=True, words="Why, in a sentence."),
)
RUN_COLUMNS = (
    Column("Version", ".status.latestVersion.version", "integer", words="The newest committed version."),
    Column(
        "Anchor", ".status.latestAnchorVersion", "integer", words="The newest version whose whole weights are stored."
    ),
    Column(
        "Changed",
        ".status.latestVersion.changedFraction",
        words="Share of the elements that the newest version changes.",
    ),
    Column("Pools", ".status.consumerSummary.pools", "integer", words="Pools that read the run, in every cluster."),
    Column(
        "Lag", ".status.consumerSummary.versionLag", "integer", words="How many versions the slowest pool is behind."
    ),
    *_HEALTH,
    Column("Run", ".status.runName", wide=True, words="Name of the run in the store."),
    Column("Store", ".spec.weightStore.uri", wide=True, words="Where versions are published."),
    Column("Epoch", ".status.epoch", "integer", wide=True, words="Fencing number of the writer."),
    *_AGE,
)
POOL_COLUMNS = (
    Column("Desired", ".spec.replicas", "integer", words="Replicas that are asked for."),
    Column("Ready", ".status.readyReplicas", "integer", words="Replicas that serve, proven."),
    Column("Current", ".status.currentReplicas", "integer", words="Ready replicas on the target version."),
    Column("Version", ".status.currentVersion", "integer", words="The lowest version that a ready replica serves."),
    Column("Target", ".status.targetVersion", "integer", words="The version that they should serve."),
    Column("Lag", ".status.versionLag", "integer", words="How many versions the slowest ready replica is behind."),
    *_HEALTH,
    Column("Run", ".spec.weightSource.runName", wide=True, words="Name of the run in the store."),
    Column(
        "Seconds",
        ".status.lagSeconds",
        "integer",
        wide=True,
        words="For how long the oldest version not served has been there.",
    ),
    Column("Proven", ".status.provenReplicas", "integer", wide=True, words="Replicas whose digest is the manifest's."),
    *_AGE,
)


def training_runs() -> dict[str, Any]:
    """The definition of TrainingRuns."""
    return _definition(
        TrainingRun, "trainingruns", "trun", RUN_COLUMNS, subresources={"status": {}}, selectable=(".spec.publisher",)
    )


def rollout_pools() -> dict[str, Any]:
    """The definition of RolloutPools."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _definition(
        RolloutPool,
        "rolloutpools",
        "rpool",
        POOL_COLUMNS,
        subresources={"status": {}, "scale": scale},
        selectable=(".spec.weightSource.runName", ".spec.versionPolicy.type"),
    )


def _definition(
    model: type[Part],
    plural: str,
    short: str,
    columns: Sequence[Column],
    *,
    subresources: Mapping[str, Any],
    selectable: Sequence[str],
) -> dict[str, Any]:
    kind = model.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["syncline"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": dict(subresources),
                    "additionalPrinterColumns": [column.to_json() for column in columns],
                    "selectableFields": [{"jsonPath": path} for path in selectable],
                    "schema": {"openAPIV3Schema": _schema(model)},
                }
            ],
        },
    }


def _schema(model: type[Part]) -> dict[str, Any]:
    """Of the whole object. What an API server knows by itself, it refuses to be told more of."""
    whole = structural_schema(model, without=("apiVersion", "kind", "metadata"))
    own = {
        "apiVersion": {"description": f"{GROUP}/{VERSION}.", "type": "string"},
        "kind": {"description": f"{model.__name__}.", "type": "string"},
        "metadata": {"type": "object"},
    }
    return {**whole, "required": ["spec"], "properties": {**own, **whole["properties"]}}


def files() -> dict[str, str]:
    """What belongs into `crds/`, by file name."""
    return {f"{made['metadata']['name']}.yaml": _yaml(made) for made in (training_runs(), rollout_pools())}


def write(folder: Path) -> None:
    """Write the definitions into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


class _Plain(yaml.SafeDumper):
    """Without anchors and aliases: a definition is read by people, and by tools that know neither."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(value: Mapping[str, Any]) -> str:
    return WRITTEN + yaml.dump(value, Dumper=_Plain, sort_keys=False, width=LINE, allow_unicode=True)
