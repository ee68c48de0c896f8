"""What runs a TrainingRun, at a real API server: in a namespace of Pod Security restricted, and written once."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from syncline.clock import SystemClock
from syncline_operator.api import TrainingRun
from syncline_operator.kube.access import find_access
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.errors import ApiFailure, Malformed, Refused
from syncline_operator.kube.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLUME_CLAIMS,
    Document,
    FieldManager,
    ObjectKey,
)
from syncline_operator.kube.writing import Writer
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.runs.command import Work, work_of
from syncline_operator.runs.decide import decide
from syncline_operator.runs.deletion import FINALIZER
from syncline_operator.runs.service import MANAGER, child_name, wanted_children
from syncline_operator.runs.values import TRAINING_RUNS, Failure, Observed
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import ABSENT, training_run

IMAGE = "example.com/syncline/distributor:1"
STATUS = FieldManager("syncline-run-status")
LEVEL = "pod-security.kubernetes.io/enforce"
FULL: dict[str, Any] = {
    "weightStore__caBundleRef": {"name": "corp-ca", "key": "ca.pem"},
    "checkpointSource__persistentVolumeClaim__path": "runs/a",
    "distributor": {
        "image": "example.com/own:2",
        "resources": {"requests": {"cpu": "1500m", "memory": "32Gi"}, "limits": {"memory": "32Gi"}},
        "state": {"size": "1Ti", "storageClassName": "fast"},
        "pod": {
            "labels": {"team": "rl"},
            "annotations": {"example.com/note": "x"},
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
                    }
                }
            },
            "priorityClassName": "system-cluster-critical",
            "imagePullSecrets": [{"name": "corp-registry"}],
        },
    },
}
CASES: dict[str, dict[str, Any]] = {
    "what is required": {},
    "all that may be said": FULL,
    "the trainer publishes": {"publisher": "SDK", "checkpointSource": ABSENT},
    "a bucket of checkpoints": {"checkpointSource": {"objectStorage": {"uri": "s3://ckpt/a"}}},
    "workload identity": {"weightStore__credentialsSecretRef": ABSENT, "distributor": {"serviceAccountName": "bound"}},
    "own policies": {"networkPolicy": "None"},
    "suspended": {"suspend": True},
}


class Leading:
    """Leads always."""

    def seconds_left(self) -> float:
        return 30.0


@pytest.fixture(scope="module")
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace that lets no pod in which asks for more than restricted gives."""
    name = f"syncline-test-{uuid.uuid4().hex[:8]}"
    labelled = {"metadata": {"name": name, "labels": {LEVEL: "restricted"}}, "apiVersion": "v1", "kind": "Namespace"}
    cluster.told("apply", "--filename=-", given=json.dumps(labelled))
    account = {"metadata": {"name": "default"}, "apiVersion": "v1", "kind": "ServiceAccount"}
    cluster.told("apply", f"--namespace={name}", "--filename=-", given=json.dumps(account))
    yield name
    cluster.told("delete", "namespace", name, "--wait=false")


class Hands:
    """A client that counts what a writer writes."""

    def __init__(self, client: KubeClient) -> None:
        self.client, self.writer, self.writes = client, Writer(client, Leading()), 0

    async def carry_out(self, observed: Observed) -> Observed:
        """Do what is decided, and look again."""
        decision = decide(observed, image=IMAGE)
        held = dict(observed.children)
        for child in decision.apply:
            if child.resource == TRAINING_RUNS:
                seen: Document | None = await self.client.get(child.key)
            else:
                seen = held.get(child.key)
            after = await self.writer.apply(child.resource, child.document, seen, manager=child.manager)
            if child.resource != TRAINING_RUNS:
                held[child.key] = after
            self.writes += after is not seen
        for key in decision.delete:
            await self.writer.delete(key.resource, held.pop(key))
            self.writes += 1
        key = TRAINING_RUNS.key({"metadata": observed.run.metadata.model_dump()})
        before = await self.client.get(key)
        after = await self.writer.write_status(TRAINING_RUNS, before, decision.status, manager=STATUS)
        self.writes += after is not before
        return Observed(TrainingRun.read(after), observed.now, held)


def at(cluster: Cluster, scenario: Any) -> None:
    async def go() -> None:
        access = await find_access({"KUBECONFIG": str(cluster.kubeconfig)})
        async with KubeClient(access, metrics=OperatorMetrics(), clock=SystemClock()) as client:
            await scenario(Hands(client))

    asyncio.run(go())


def a_run(namespace: str, name: str = "run", **changes: Any) -> TrainingRun:
    found = training_run(name, **changes)
    found["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "generation": 1}
    return TrainingRun.read(found)


@pytest.mark.parametrize("case", CASES)
def test_every_object_is_one_that_a_server_takes_and_its_pod_fits_restricted(
    cluster: Cluster, restricted: str, case: str
) -> None:
    run = a_run(restricted, "r" * 52, **CASES[case])

    async def scenario(hands: Hands) -> None:
        for work in (work_of(run), Work.ERASE):
            made = wanted_children(run, work, image=IMAGE)
            for child in made:
                await hands.writer.try_out(child.resource, child.document, manager=child.manager)
            template = next(child for child in made if child.resource == DEPLOYMENTS).document["spec"]["template"]
            pod = {
                "metadata": {**template["metadata"], "name": "pod", "namespace": restricted},
                "spec": template["spec"],
            }
            # The account is not there in a dry run of all of it; whose token is not mounted does not matter here.
            pod["spec"] = {**pod["spec"], "serviceAccountName": "default"}
            await hands.writer.try_out(PODS, pod, manager=MANAGER)

    at(cluster, scenario)


def test_a_namespace_that_is_restricted_refuses_a_pod_that_asks_for_more(cluster: Cluster, restricted: str) -> None:
    spec = {"containers": [{"name": "main", "image": IMAGE}]}
    pod = {"metadata": {"name": "pod", "namespace": restricted}, "spec": spec}

    async def scenario(hands: Hands) -> None:
        with pytest.raises(Refused, match="violates PodSecurity"):
            await hands.writer.try_out(PODS, pod, manager=MANAGER)

    at(cluster, scenario)


def test_a_decision_that_was_carried_out_writes_nothing_more(cluster: Cluster, restricted: str) -> None:
    created = json.loads(
        cluster.told("create", f"--namespace={restricted}", "--filename=-", "--output=json",
                     given=json.dumps(training_run("settles", deletionPolicy="Delete", **FULL)))
    )  # fmt: skip
    fixed = 1_800_000_000.0

    async def scenario(hands: Hands) -> None:
        observed = await hands.carry_out(Observed(TrainingRun.read(created), fixed))
        assert 7 == hands.writes  # account, claim, Service, policy, Deployment, finalizer, status
        assert (FINALIZER,) == observed.run.metadata.finalizers
        for _ in range(2):
            observed = await hands.carry_out(observed)
        assert 7 == hands.writes
        # The spec changes: what is not wanted any more goes, and the rest settles again.
        cluster.told("patch", "trun", "settles", f"--namespace={restricted}", "--type=merge",
                     "--patch", json.dumps({"spec": {"networkPolicy": "None", "deletionPolicy": "Retain"}}))  # fmt: skip
        run = TrainingRun.read(await hands.client.get(ObjectKey(TRAINING_RUNS, restricted, "settles")))
        observed = await hands.carry_out(Observed(run, fixed, observed.children))
        assert NETWORK_POLICIES not in {key.resource for key in observed.children}
        assert () == observed.run.metadata.finalizers
        done = hands.writes
        await hands.carry_out(observed)
        assert done == hands.writes

    at(cluster, scenario)


def test_what_a_server_refuses_is_told_in_its_words(cluster: Cluster, restricted: str) -> None:
    run = a_run(restricted, distributor={"state": {"size": "10Gi", "storageClassName": "Not.A.Class."}})
    claim = next(c for c in wanted_children(run, Work.WATCH, image=IMAGE) if c.resource == VOLUME_CLAIMS)

    async def scenario(hands: Hands) -> None:
        with pytest.raises(Malformed) as refused:
            await hands.writer.try_out(claim.resource, claim.document, manager=claim.manager)
        failure = Failure.of(refused.value)
        assert failure is not None
        told = {
            each["type"]: each for each in decide(Observed(run, 0.0, failure=failure), image=IMAGE).status["conditions"]
        }
        assert "ChildRefused" == told["DistributorAvailable"]["reason"] == told["Ready"]["reason"]
        assert "storageClassName" in told["Ready"]["message"]

    at(cluster, scenario)


def test_nothing_of_it_has_a_token_or_may_change_its_image() -> None:
    made = {c.resource: c.document for c in wanted_children(a_run("n"), Work.WATCH, image=IMAGE)}
    pod = made[DEPLOYMENTS]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (False, False, False) == (
        made[SERVICE_ACCOUNTS]["automountServiceAccountToken"],
        pod["automountServiceAccountToken"],
        pod["enableServiceLinks"],
    )
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"state": False, "scratch": False, "checkpoints": True} == {
        each["name"]: each.get("readOnly", False) for each in container["volumeMounts"]
    }
    assert "Recreate" == made[DEPLOYMENTS]["spec"]["strategy"]["type"]
    assert made[SERVICES]["spec"]["publishNotReadyAddresses"] is True
    secrets = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
    assert [("weights", "AWS_ACCESS_KEY_ID"), ("weights", "AWS_SECRET_ACCESS_KEY")] == [
        (each["name"], each["key"]) for each in secrets
    ]


def test_a_user_may_label_pods_but_not_as_the_operator_does() -> None:
    run = a_run("n", distributor={"pod": {"labels": {"app.kubernetes.io/managed-by": "me", "team": "rl"}}})
    made = {c.resource: c.document for c in wanted_children(run, Work.WATCH, image=IMAGE)}
    labels = made[DEPLOYMENTS]["spec"]["template"]["metadata"]["labels"]
    assert ("syncline-operator", "rl") == (labels["app.kubernetes.io/managed-by"], labels["team"])
    assert made[DEPLOYMENTS]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_names_fit_what_is_named_after_them() -> None:
    assert 63 >= len(child_name(a_run("n", "r" * 52)))


def test_errors_that_pass_are_not_told_as_refusals() -> None:
    assert None is Failure.of(ApiFailure("the server did not answer"))
