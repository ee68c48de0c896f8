"""What an API server refuses, and the very words that a user then reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import ABSENT, changed, rollout_pool, training_run

FAULT = re.compile(
    r"^(?P<at>\S+): (?:Invalid value|Required value|Forbidden|Unsupported value|Too long|Too many)"
    r'(?:: (?:"(?:[^"\\]|\\.)*"|-?\d+|null))?(?:: (?P<words>.*))?$',
    re.DOTALL,
)
NOT_ALL = (
    ", <nil>: Invalid value: null: some validation rules were not checked because the object was "
    "invalid; correct the existing errors to complete validation"
)

SPAN = "such as 30s, 5m or 1h30m"
REPLICAS = "must be a number of replicas, 0 or more, or a percentage of them such as 25%"
NAME = "must be a name: lower-case letters, digits, '.', '_' and '-', a letter or digit at both ends, and no '..'"
BUCKET = (
    "must be s3://bucket/prefix, where a bucket has 3 to 63 characters: lower-case letters, digits, '-' and single '.'"
)
NO_CREDENTIAL = "must hold no credential; put the key pair into a Secret, credentialsSecretRef"
OBJECT = "must be the name of an object: lower-case letters, digits, '-' and '.', a letter or digit at both ends"
QUANTITY = "must be a quantity of 0 or more, such as 500m, 4, 16Gi or 1.5T"
BELOW = "must be a path below, without a leading '/', '.' or '..'"
ENDPOINT = "https://s3.example.com"
CLAIM = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
BUCKET_SOURCE = {"objectStorage": {"uri": "s3://checkpoints/run"}}
OWN_POD = {"spec": {"containers": [{"name": "syncline-agent"}]}}
WORKLOAD = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "big"}

CREATED: Sequence[tuple[dict[str, Any], str]] = [
    # Of a TrainingRun.
    (
        training_run("x" * 53),
        "the name of a TrainingRun has at most 52 characters: Services and pods are named after it, with a suffix",
    ),
    (
        training_run("a.b"),
        "the name of a TrainingRun begins with a letter and has letters, digits and '-' only: Services "
        "are named after it",
    ),
    (
        training_run("7b"),
        "the name of a TrainingRun begins with a letter and has letters, digits and '-' only: Services "
        "are named after it",
    ),
    (
        training_run(checkpointSource=ABSENT),
        "spec.checkpointSource: publisher Distributor needs checkpointSource; where the trainer "
        "publishes itself, set publisher SDK",
    ),
    (
        training_run(publisher="SDK"),
        "spec.checkpointSource: publisher SDK takes no checkpointSource: the trainer publishes itself",
    ),
    (training_run(publisher="Trainer"), 'spec.publisher: supported values: "Distributor", "SDK"'),
    (
        training_run(checkpointSource={**CLAIM, **BUCKET_SOURCE}),
        "spec.checkpointSource: name exactly one of persistentVolumeClaim and objectStorage",
    ),
    (
        training_run(checkpointSource={}),
        "spec.checkpointSource: name exactly one of persistentVolumeClaim and objectStorage",
    ),
    (
        training_run(checkpointSource={"objectStorage": {"uri": "s3://weights/team-a/run", "endpoint": ENDPOINT}}),
        "spec.checkpointSource: checkpointSource must not lie below weightStore: the run's own anchors "
        "would be taken for checkpoints",
    ),
    (
        training_run(checkpointSource__persistentVolumeClaim__path="/abs"),
        f"spec.checkpointSource.persistentVolumeClaim.path: {BELOW}",
    ),
    (training_run(checkpointSource__subfolder="a/../../b"), f"spec.checkpointSource.subfolder: {BELOW}"),
    (
        training_run(checkpointSource__completion={"type": "Marker"}),
        "spec.checkpointSource.completion.marker: type Marker needs marker, the file's name",
    ),
    (
        training_run(checkpointSource__completion={"marker": "DONE"}),
        "spec.checkpointSource.completion.marker: marker goes with type Marker",
    ),
    (
        training_run(checkpointSource__completion={"type": "Marker", "marker": "a/b"}),
        "spec.checkpointSource.completion.marker: must be a file's name, without '/'",
    ),
    (
        training_run(checkpointSource__pollInterval="0s"),
        f"spec.checkpointSource.pollInterval: must be a span of time from 100ms to 1h, {SPAN}",
    ),
    (training_run(weightStore__uri="https://s3.example.com/weights"), f"spec.weightStore.uri: {BUCKET}"),
    (training_run(weightStore__uri="s3://We/x"), f"spec.weightStore.uri: {BUCKET}"),
    (training_run(weightStore__uri="s3://weights/x/"), f"spec.weightStore.uri: {BUCKET}"),
    (training_run(weightStore__uri="s3://key:secret@weights/x"), f"spec.weightStore.uri: {NO_CREDENTIAL}"),
    (
        training_run(weightStore__uri="s3://weights/" + "x" * 121),
        "spec.weightStore.uri: must have a prefix of at most 120 characters",
    ),
    (
        training_run(weightStore__uri="s3://weights/x?region=eu"),
        "spec.weightStore.uri: must hold no options; endpoint and region are fields of their own",
    ),
    (
        training_run(weightStore__endpoint="s3.example.com"),
        "spec.weightStore.endpoint: must be http://host:port or https://host:port, without a path",
    ),
    (training_run(weightStore__endpoint="https://k:s@s3.example.com"), f"spec.weightStore.endpoint: {NO_CREDENTIAL}"),
    (
        training_run(weightStore__endpoint="http://store:8333", weightStore__caBundleRef={"name": "ca"}),
        "spec.weightStore.caBundleRef: caBundleRef needs an endpoint that begins with https://",
    ),
    (
        training_run(weightStore__credentialsSecretRef={"name": "Weights"}),
        f"spec.weightStore.credentialsSecretRef.name: {OBJECT}",
    ),
    (
        training_run(weightStore__credentialsSecretRef={"name": "w", "secretKeyEntry": "AWS_ACCESS_KEY_ID"}),
        "spec.weightStore.credentialsSecretRef.secretKeyEntry: accessKeyEntry and secretKeyEntry must name two entries",
    ),
    (training_run(runName="Run"), f"spec.runName: {NAME}"),
    (training_run(view="a..b"), f"spec.view: {NAME}"),
    (
        training_run(publishPolicy={"anchorEvery": 0, "anchorAtPercent": 0}),
        "spec.publishPolicy: one of anchorEvery and anchorAtPercent must be above 0: without anchors the "
        "chain only grows, and joiners fetch all of it",
    ),
    (
        training_run(publishPolicy__anchorEvery=-1),
        "spec.publishPolicy.anchorEvery: spec.publishPolicy.anchorEvery in body should be greater than or equal to 0",
    ),
    (
        training_run(publishPolicy__codec="zip"),
        'spec.publishPolicy.codec: supported values: "Auto", "Context", "Sparse", "XorZstd", "XorLz4", "Raw"',
    ),
    (
        training_run(retention__leasePeriod="10s"),
        f"spec.retention.leasePeriod: must be a span of time from 1m to 24h, {SPAN}",
    ),
    (training_run(deletionTimeout="forever"), f"spec.deletionTimeout: must be a span of time from 10s to 24h, {SPAN}"),
    (training_run(distributor__state__size="-1Gi"), f"spec.distributor.state.size: {QUANTITY}"),
    (
        training_run(distributor__resources__requests={"cpu": "many"}),
        f"spec.distributor.resources.requests[cpu]: {QUANTITY}",
    ),
    (
        training_run(distributor__pod__labels={"syncline.dev/run": "x"}),
        "spec.distributor.pod.labels: labels that begin with syncline.dev/ are the operator's own",
    ),
    (
        training_run(distributor__pod__tolerations=[{"value": "x"}]),
        "spec.distributor.pod.tolerations[0].key: operator Equal needs a key",
    ),
    (
        training_run(distributor__pod__tolerations=[{"key": "gpu", "operator": "Exists", "value": "x"}]),
        "spec.distributor.pod.tolerations[0].value: operator Exists takes no value",
    ),
    # Of a RolloutPool.
    (
        rollout_pool("x" * 53),
        "the name of a RolloutPool has at most 52 characters: Services and pods are named after it, with a suffix",
    ),
    (rollout_pool(template=ABSENT), "spec: name exactly one of template and workloadRef"),
    (rollout_pool(workloadRef=WORKLOAD), "spec: name exactly one of template and workloadRef"),
    (
        rollout_pool(template=ABSENT, workloadRef=WORKLOAD, replicas=3),
        "spec.replicas: with workloadRef the workload itself is scaled; leave replicas out",
    ),
    (
        rollout_pool(template=ABSENT, workloadRef={**WORKLOAD, "apiVersion": "lws"}),
        "spec.workloadRef.apiVersion: must be a group and version such as leaderworkerset.x-k8s.io/v1",
    ),
    (
        rollout_pool(template__spec__containers=[]),
        "spec.template.spec.containers: spec.template.spec.containers in body should have at least 1 items",
    ),
    (
        rollout_pool(template=OWN_POD),
        "spec.template.spec.containers[0].name: names of containers that begin with syncline- are taken "
        "by those that the operator adds",
    ),
    (
        rollout_pool(engine__container="serve"),
        "spec.engine.container: engine.container must name a container of template",
    ),
    (rollout_pool(engine__type="TGI"), 'spec.engine.type: supported values: "vLLM", "SGLang", "Reference"'),
    (
        rollout_pool(engine__port=70000),
        "spec.engine.port: spec.engine.port in body should be less than or equal to 65535",
    ),
    (
        rollout_pool(engine={"type": "Reference", "applyPath": "Reload"}),
        "spec.engine.applyPath: type Reference has no reload route; its applyPath is InPlace",
    ),
    (
        rollout_pool(gateway__port=8000),
        "spec.gateway.port: gateway.port and engine.port must differ: both listen in the same pod",
    ),
    (
        rollout_pool(agent={"mode": "Sidecar", "port": 8100}),
        "spec.agent.port: agent.port and gateway.port must differ: both listen in the same pod",
    ),
    (rollout_pool(weightSource__runName="x" * 64), "spec.weightSource.runName: may not be more than 63 bytes"),
    (rollout_pool(weightSource__trust="Require"), 'spec.weightSource.trust: supported values: "Off"'),
    (
        rollout_pool(weightSource__mirrors=[{"uri": "s3://weights/team-a", "endpoint": ENDPOINT}]),
        "spec.weightSource.mirrors: a mirror must be another place than weightStore",
    ),
    (
        rollout_pool(versionPolicy__type="Pinned"),
        "spec.versionPolicy.version: type Pinned needs version, the one to serve",
    ),
    (
        rollout_pool(versionPolicy__version=7),
        "spec.versionPolicy.version: version goes with type Pinned; Latest takes none",
    ),
    (
        rollout_pool(versionPolicy__staleAction="MarkNotReady"),
        "spec.versionPolicy.staleAction: staleAction MarkNotReady needs maxVersionLag or maxLagSeconds: "
        "without a bound nothing is stale",
    ),
    (
        rollout_pool(versionPolicy__canary={"bakeTime": "2d"}),
        f"spec.versionPolicy.canary.bakeTime: must be a span of time from 1s to 24h, {SPAN}",
    ),
    (
        rollout_pool(versionPolicy__requestPolicy="Pause"),
        'spec.versionPolicy.requestPolicy: supported values: "Keep", "Drain", "Abort"',
    ),
    (
        rollout_pool(updateStrategy__rollingUpdate={"maxUnavailable": "120%"}),
        f"spec.updateStrategy.rollingUpdate.maxUnavailable: {REPLICAS}",
    ),
    (
        rollout_pool(updateStrategy__rollingUpdate={"maxUnavailable": "0%", "maxSurge": 0}),
        "spec.updateStrategy.rollingUpdate: maxUnavailable and maxSurge cannot both be 0: no pod could "
        "ever be replaced",
    ),
    (
        rollout_pool(agent__cache={"medium": "Memory", "sizeLimit": "8Gi"}),
        "spec.agent.cache.medium: cache.medium Memory goes with mode Sidecar: nodes share a folder of their disk",
    ),
    (
        rollout_pool(agent={"mode": "Sidecar", "cache": {"medium": "Memory"}}),
        "spec.agent.cache.sizeLimit: medium Memory needs sizeLimit: it would take the engine's memory without a bound",
    ),
    (
        rollout_pool(agent__cache__sizeLimit="8Gi"),
        "spec.agent.cache.sizeLimit: cache.sizeLimit goes with mode Sidecar: nothing bounds a folder of a node",
    ),
    (
        rollout_pool(agent__cache__hostPath="/"),
        "spec.agent.cache.hostPath: must be an absolute path below '/', of letters, digits, '.', '_' and "
        "'-', without '.' or '..' parts",
    ),
    (
        rollout_pool(agent={"mode": "Sidecar", "pod": {}}),
        "spec.agent.pod: pod goes with mode Node: a sidecar runs where its engine does",
    ),
    (
        rollout_pool(agent={"mode": "Sidecar", "serviceAccountName": "reader"}),
        "spec.agent.serviceAccountName: serviceAccountName goes with mode Node: a sidecar has the one of its template",
    ),
    (
        rollout_pool(disruption__terminationNotice="2h"),
        f"spec.disruption.terminationNotice: must be a span of time from 1s to 1h, {SPAN}",
    ),
    (
        rollout_pool(progressDeadlineSeconds=60, minReadySeconds=60),
        "spec.progressDeadlineSeconds: progressDeadlineSeconds must be above minReadySeconds",
    ),
]
CHANGED: Sequence[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        training_run(),
        {"runName": "other"},
        "spec: runName cannot be changed; create another TrainingRun for another run",
    ),
    (training_run(), {"view": "fp8"}, "spec.view: view cannot be changed; create another TrainingRun for another view"),
    (
        training_run(),
        {"weightStore__uri": "s3://weights/b"},
        "spec.weightStore.uri: uri cannot be changed; create another TrainingRun for another store",
    ),
    (training_run(), {"distributor__state__size": "99Gi"}, "spec.distributor.state.size: size may grow, never shrink"),
    (
        training_run(),
        {"distributor__state__storageClassName": "fast"},
        "spec.distributor.state: storageClassName cannot be changed; delete and create the TrainingRun "
        "instead, with deletionPolicy Retain nothing is lost",
    ),
    (
        rollout_pool(),
        {"weightSource__runName": "other"},
        "spec.weightSource.runName: runName cannot be changed; create another RolloutPool for another run",
    ),
    (
        rollout_pool(),
        {"weightSource__view": "fp8"},
        "spec.weightSource.view: view cannot be changed; create another RolloutPool for another view",
    ),
    (
        rollout_pool(),
        {"weightSource__weightStore__uri": "s3://weights/b"},
        "spec.weightSource.weightStore.uri: uri cannot be changed; create another RolloutPool for another store",
    ),
    (
        rollout_pool(),
        {"template": ABSENT, "workloadRef": WORKLOAD},
        "spec: template and workloadRef cannot be exchanged; create another RolloutPool",
    ),
    (
        rollout_pool(template=ABSENT, workloadRef=WORKLOAD),
        {"workloadRef": {**WORKLOAD, "name": "other"}},
        "spec.workloadRef: workloadRef cannot be changed; create another RolloutPool for another workload",
    ),
]


def listed(objects: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def named(found: dict[str, Any], number: int) -> dict[str, Any]:
    """Under a name of its own, unless its name is what is wrong."""
    name: str = found["metadata"]["name"]
    return {**found, "metadata": {"name": f"{name}-{number}" if name in ("run", "pool") else name}}


def refusals(printed: str) -> dict[tuple[str, str], str]:
    """What was said of each object, by kind and name, without the value at fault."""
    said: dict[tuple[str, str], str] = {}
    for kind, name, faults in re.findall(r'(\w+)\.syncline\.dev "([^"]+)" is invalid: (.*)', printed):
        fault = FAULT.match(faults.replace(NOT_ALL, "").strip("[]") if NOT_ALL in faults else faults)
        assert fault is not None, faults
        at = "" if fault["at"] == "<nil>" else f"{fault['at']}: "
        said[kind, name] = f"{at}{fault['words'] or ''}"
    return said


@pytest.fixture(scope="module")
def said_when_created(cluster: Cluster, namespace: str) -> dict[tuple[str, str], str]:
    objects = [named(found, number) for number, (found, _) in enumerate(CREATED)]
    # All at once: a call of kubectl takes longer than what it asks. The server judges by itself, not kubectl before it.
    flags = ("--namespace", namespace, "--dry-run=server", "--validate=ignore", "--filename=-")
    return refusals(cluster.run("create", *flags, given=listed(objects)).stderr)


@pytest.fixture(scope="module")
def said_when_changed(cluster: Cluster, namespace: str) -> dict[tuple[str, str], str]:
    before = [named(found, number) for number, (found, _, _) in enumerate(CHANGED)]
    cluster.told("create", "--namespace", namespace, "--filename=-", given=listed(before))
    after = [changed(found, **change) for found, (_, change, _) in zip(before, CHANGED, strict=True)]
    flags = ("--namespace", namespace, "--dry-run=server", "--validate=ignore", "--filename=-")
    return refusals(cluster.run("replace", *flags, given=listed(after)).stderr)


@pytest.mark.parametrize("number", range(len(CREATED)), ids=[words.partition(": ")[0] for _, words in CREATED])
def test_what_cannot_be_is_refused_in_words(said_when_created: dict[tuple[str, str], str], number: int) -> None:
    found, words = CREATED[number]
    assert words == said_when_created[found["kind"], named(found, number)["metadata"]["name"]]


@pytest.mark.parametrize("number", range(len(CHANGED)), ids=[words.partition(": ")[0] for _, _, words in CHANGED])
def test_what_cannot_change_is_refused_in_words(said_when_changed: dict[tuple[str, str], str], number: int) -> None:
    found, _, words = CHANGED[number]
    assert words == said_when_changed[found["kind"], named(found, number)["metadata"]["name"]]


def test_what_is_refused_when_nothing_is_wrong_is_nothing(cluster: Cluster, namespace: str) -> None:
    found = listed([training_run(), rollout_pool(), rollout_pool("adopting", template=ABSENT, workloadRef=WORKLOAD)])
    made = cluster.told(
        "create", "--namespace", namespace, "--dry-run=server", "--output=name", "--filename=-", given=found
    )
    assert [
        "trainingrun.syncline.dev/run",
        "rolloutpool.syncline.dev/pool",
        "rolloutpool.syncline.dev/adopting",
    ] == made.split()


def test_a_field_that_does_not_exist_is_named(cluster: Cluster, namespace: str) -> None:
    found = rollout_pool(versionPolicy__maxLag=3)
    refused = cluster.run("create", "--namespace", namespace, "--filename=-", given=json.dumps(found))
    assert 'unknown field "spec.versionPolicy.maxLag"' in refused.stderr
