"""Told from managedFields alone: whether an apply would change anything."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from syncline_operator.kube.ownership import is_settled
from syncline_operator.kube.resources import FieldManager
from syncline_operator.kube.writing import difference

MINE = FieldManager("mine")
OBSERVED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {
        "name": "a",
        "uid": "1",
        "labels": {"app": "a", "theirs": "x"},
        "finalizers": ["syncline.dev/cleanup", "other"],
        "managedFields": [
            {"manager": "mine", "operation": "Update", "fieldsV1": {"f:spec": {"f:type": {}}}},
            {"manager": "mine", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": {}}},
            {
                "manager": "mine",
                "operation": "Apply",
                "fieldsV1": {
                    "f:metadata": {
                        "f:labels": {"f:app": {}},
                        "f:finalizers": {'v:"syncline.dev/cleanup"': {}},
                    },
                    "f:spec": {
                        "f:selector": {},
                        "f:ports": {
                            'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:name": {}},
                            'k:{"port":53,"protocol":"UDP"}': {".": {}, "f:port": {}, "f:protocol": {}},
                        },
                    },
                },
            },
        ],
    },
    "spec": {
        "selector": {"app": "a"},
        "clusterIP": "10.0.0.1",
        "ports": [
            {"port": 53, "protocol": "UDP", "targetPort": 53},
            {"port": 80, "protocol": "TCP", "name": "web", "targetPort": 80},
        ],
    },
}
DESIRED: dict[str, Any] = {
    "metadata": {
        "name": "a",
        "labels": {"app": "a"},
        "annotations": None,
        "finalizers": ["syncline.dev/cleanup"],
    },
    "spec": {
        "selector": {"app": "a"},
        "ports": [{"port": 80, "name": "web"}, {"port": 53, "protocol": "UDP"}],
    },
}


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    *above, last = path.split(".")
    at: Any = changed
    for name in above:
        at = at[int(name)] if isinstance(at, list) else at[name]
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return changed


def test_an_object_that_has_all_that_is_wanted_is_settled_whatever_the_server_and_others_added() -> None:
    assert is_settled(DESIRED, OBSERVED, MINE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.labels", {"app": "b"}),
        ("metadata.labels", {"app": "a", "new": "b"}),
        ("metadata.labels", {}),
        ("metadata.finalizers", []),
        ("metadata.annotations", {"a": "b"}),
        ("spec.selector", {"app": "a", "role": "b"}),
        ("spec.ports.0.name", "other"),
        ("spec.ports.0.port", 81),
        ("spec.ports", [{"port": 80, "name": "web"}]),
        ("spec.ports", [*DESIRED["spec"]["ports"], {"port": 9}]),
        ("spec.type", "ClusterIP"),
    ],
)
def test_a_change_of_what_is_wanted_is_seen(path: str, value: Any) -> None:
    assert not is_settled(put(DESIRED, path, value), OBSERVED, MINE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.labels", {"app": "theirs"}),
        ("metadata.finalizers", ["other"]),
        ("spec.selector", {"app": "a", "role": "theirs"}),
        ("spec.ports.1.name", "theirs"),
        ("spec.ports", []),
        ("metadata.managedFields", []),
    ],
)
def test_a_change_that_others_made_to_owned_fields_is_seen(path: str, value: Any) -> None:
    assert not is_settled(DESIRED, put(OBSERVED, path, value), MINE)


@pytest.mark.parametrize(
    ("path", "value"),
    [("metadata.labels.theirs", "y"), ("spec.clusterIP", "10.0.0.2"), ("spec.ports.0.targetPort", 5353)],
)
def test_what_others_own_is_left_to_them(path: str, value: Any) -> None:
    assert is_settled(DESIRED, put(OBSERVED, path, value), MINE)


@pytest.mark.parametrize(
    ("held", "wanted", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"c": 1, "d": 2}}, {}),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"c": 3}}, {"a": None, "b": {"c": 3, "d": None}}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": False, "c": {}}, {"a": False, "c": {}}),
    ],
)
def test_a_status_patch_holds_what_differs_and_nothing_else(held: Any, wanted: Any, patch: Any) -> None:
    assert patch == difference(held, wanted)
