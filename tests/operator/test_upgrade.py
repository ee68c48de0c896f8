"""A newer definition over objects that are there: nothing is lost, nothing is stuck.

Under a group of its own, so that no other test sees a definition change.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from syncline.clock import SystemClock
from syncline_operator.api.crds import rollout_pools
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import rollout_pool

GROUP = "older.syncline.dev"
NAME = f"rolloutpools.{GROUP}"
OF = f"rolloutpools.{GROUP}/here"
TRIES = 300


def definition(change: Callable[[dict[str, Any]], None]) -> str:
    """Of the other group, with another schema of spec."""
    made = copy.deepcopy(rollout_pools())
    made["metadata"]["name"] = NAME
    made["spec"]["group"] = GROUP
    made["spec"]["names"] |= {"shortNames": ["older"], "categories": ["older"]}
    change(made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return json.dumps(made)


def without_min_ready_seconds(spec: dict[str, Any]) -> None:
    del spec["properties"]["minReadySeconds"]
    spec["x-kubernetes-validations"] = [
        rule for rule in spec["x-kubernetes-validations"] if "minReadySeconds" not in rule["rule"]
    ]


def with_high_ports(spec: dict[str, Any]) -> None:
    spec["properties"]["engine"]["properties"]["port"]["minimum"] = 9000
    # Otherwise the default would be refused by its own bound.
    spec["properties"]["engine"]["properties"]["port"]["default"] = 9000


@pytest.fixture
def here(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The namespace with an object of yesterday's definition."""
    cluster.told("apply", "--server-side", "--filename=-", given=definition(without_min_ready_seconds))
    cluster.told("wait", "--for=condition=Established", "--timeout=60s", f"crd/{NAME}")
    found = {**rollout_pool("here", engine__port=8000), "apiVersion": f"{GROUP}/v1alpha1"}
    flags = ("--namespace", namespace, "--filename=-")
    until(lambda: cluster.run("create", *flags, given=json.dumps(found)).returncode == 0)
    yield namespace
    cluster.told("delete", "crd", NAME)


def until(so: Callable[[], bool]) -> None:
    """A server takes a moment to serve what it was told."""
    clock = SystemClock()
    for _ in range(TRIES):
        if so():
            return
        clock.sleep(0.1)
    raise AssertionError("it did not come about")


def spec_of(cluster: Cluster, namespace: str) -> dict[str, Any]:
    return json.loads(cluster.told("get", OF, "--namespace", namespace, "--output=json"))["spec"]


def upgrade(cluster: Cluster, change: Callable[[dict[str, Any]], None]) -> None:
    cluster.told("apply", "--server-side", "--filename=-", given=definition(change))


def test_a_field_that_is_new_comes_with_its_default_and_takes_nothing_away(cluster: Cluster, here: str) -> None:
    before = spec_of(cluster, here)
    assert "minReadySeconds" not in before
    upgrade(cluster, lambda spec: None)
    until(lambda: "minReadySeconds" in spec_of(cluster, here))
    assert {**before, "minReadySeconds": 0} == spec_of(cluster, here)


def test_a_bound_that_is_new_holds_no_object_that_was_there_before_it(cluster: Cluster, here: str) -> None:
    upgrade(cluster, with_high_ports)
    flags = ("--namespace", here, "--type=merge", "--patch")
    lower = json.dumps({"spec": {"engine": {"port": 8001}}})
    until(lambda: cluster.run("patch", OF, *flags, lower, "--dry-run=server").returncode != 0)
    assert "patched" in cluster.told("patch", OF, *flags, json.dumps({"spec": {"suspend": True}}))
    refused = cluster.run("patch", OF, *flags, lower)
    assert "spec.engine.port in body should be greater than or equal to 9000" in refused.stderr
