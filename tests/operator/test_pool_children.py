"""What a pool is made of, judged by a real API server, by Pod Security, and by the programs that take it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from syncline.versions import Policy
from syncline_agent.__main__ import parse_settings as agent_settings
from syncline_agent.gateway.__main__ import parse_settings as gateway_settings
from syncline_agent.policy import Target, parse_target
from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import DAEMON_SETS, DEPLOYMENTS, Document, Resource
from syncline_operator.pools import names
from syncline_operator.pools.beside import PoolSettings, store_url
from syncline_operator.pools.children import children
from syncline_operator.pools.observed import Observed
from syncline_operator.pools.target import policy_generation, policy_map
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import changed, rollout_pool

FOLDER = Path(__file__).resolve().parents[2] / "examples/kubernetes"
POOLS = [
    pytest.param(found, id=f"{path.stem}/{found['metadata']['name']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if found["kind"] == "RolloutPool"
]
SETTINGS = PoolSettings(image="registry.example.com/syncline/agent:1", cluster="eu-1")
RESTRICTED = {
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "engine",
                "image": "registry.example.com/engine:1",
                "args": ["$(SYNCLINE_CHECKPOINT)"],
                "env": [{"name": "PYTHONPATH", "value": "/app"}, {"name": "SYNCLINE_POD", "value": "mine"}],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "initContainers": [
            {
                "name": "warm",
                "image": "registry.example.com/warm:1",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "nodeSelector": {"gpu": "yes"},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "engine"}},
            }
        ],
    },
    "metadata": {"labels": {"app": "engine"}},
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"agent__mode": "Node"},
    "sidecar": {"agent__mode": "Sidecar", "agent__cache": {"medium": "Memory", "sizeLimit": "20Gi"}},
    "everything": {
        "agent__mode": "Node",
        "agent__pod": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "labels": {"team": "a"},
            "annotations": {"note": "b"},
            "nodeSelector": {"gpu": "yes"},
        },
        "agent__resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "2Gi"}},
        "engine__apiKeySecretRef": {"name": "engine-key"},
        "weightSource__weightStore__caBundleRef": {"name": "corp-ca"},
        "weightSource__mirrors": [{"uri": "s3://mirror/team-a", "endpoint": "http://mirror:9000"}],
        "weightSource__distributorURL": "http://distributor:9400",
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": "10%"}},
    },
    "reload": {"agent__mode": "Sidecar", "engine": {"type": "SGLang", "applyPath": "Reload", "port": 30000}},
    "reference": {"agent__mode": "Node", "engine": {"type": "Reference"}, "updateStrategy": {"type": "Recreate"}},
    "closed elsewhere": {"agent__mode": "Node", "networkPolicy": "None", "gateway__wait": "0s"},
}


def pool_of(namespace: str = "rl", generation: int = 3, **changes: Any) -> RolloutPool:
    found = rollout_pool("pool", template=RESTRICTED, **changes)
    found["metadata"] |= {"namespace": namespace, "uid": "7a1f", "generation": generation}
    return RolloutPool.read(found)


def observed_of(pool: RolloutPool) -> Observed:
    return Observed(pool, SETTINGS, now=0.0)


def whole(resource: Resource, document: Document) -> Document:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **document}


def child(pool: RolloutPool, resource: Resource) -> Document:
    (found,) = (document for kind, document in children(observed_of(pool)) if kind is resource)
    return found


def container(template: Document, name: str) -> Document:
    spec = template["spec"]
    (found,) = (item for item in (*spec["containers"], *spec.get("initContainers", ())) if item["name"] == name)
    return found


@pytest.fixture(scope="module")
def levels(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A namespace for each level of Pod Security."""
    made = {level: f"syncline-{level}-{uuid.uuid4().hex[:6]}" for level in ("restricted", "baseline", "privileged")}
    objects: list[Document] = []
    for level, name in made.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for account in ("default", "pool-agent"):
            metadata = {"name": account, "namespace": name}
            objects.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    cluster.told("apply", "--server-side", "--filename=-", given=as_list(objects))
    yield made
    cluster.told("delete", "namespace", *made.values(), "--wait=false")


def as_list(objects: list[Document]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def tried(cluster: Cluster, objects: list[Document]) -> str:
    """What an API server says of objects that it need not keep; empty where it takes them."""
    done = cluster.run(
        *("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict", "--filename=-"),
        given=as_list(objects),
    )
    return done.stderr


def pod(document: Document, name: str) -> Document:
    template = document["spec"]["template"]
    metadata = {**template["metadata"], "name": name, "namespace": document["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_api_server_takes_every_object_of_a_pool_without_a_word(
    shape: str, cluster: Cluster, levels: dict[str, str]
) -> None:
    pool = pool_of(levels["privileged"], **SHAPES[shape])
    objects = [whole(resource, document) for resource, document in children(observed_of(pool))]
    pods = [pod(document, f"pod-{at}") for at, document in enumerate(objects) if "template" in document.get("spec", {})]
    assert "" == tried(cluster, [*objects, *pods])


@pytest.mark.parametrize("found", POOLS)
def test_the_pools_of_the_examples_are_made_of_what_an_api_server_takes(
    found: Document, cluster: Cluster, levels: dict[str, str]
) -> None:
    metadata = found["metadata"] | {"namespace": levels["privileged"], "uid": "7a1f", "generation": 1}
    pool = RolloutPool.read(found | {"metadata": metadata})
    objects = [whole(resource, document) for resource, document in children(observed_of(pool))]
    assert "" == tried(cluster, objects)
    engine = child(pool, DEPLOYMENTS)["spec"]["template"]["spec"]["containers"][0]
    assert "$(SYNCLINE_CHECKPOINT)" in "".join(engine["args"])


def test_pods_with_a_sidecar_are_within_restricted_and_those_with_a_folder_of_the_node_are_refused_even_by_baseline(
    cluster: Cluster, levels: dict[str, str]
) -> None:
    engine = child(pool_of(levels["restricted"], **SHAPES["sidecar"]), DEPLOYMENTS)
    assert "" == tried(cluster, [pod(engine, "engine")])
    for resource in (DEPLOYMENTS, DAEMON_SETS):
        refused = tried(cluster, [pod(child(pool_of(levels["baseline"]), resource), "refused")])
        assert "hostPath volumes" in refused and "syncline-node" in refused


@pytest.mark.parametrize("shape", SHAPES)
def test_agent_and_gateway_take_the_flags_that_they_are_given(shape: str) -> None:
    pool = pool_of(**SHAPES[shape])
    template = child(pool, DEPLOYMENTS)["spec"]["template"]
    if pool.shares_nodes:
        spec = child(pool, DAEMON_SETS)["spec"]["template"]["spec"]
        agent = container({"spec": spec}, "syncline-agent")
    else:
        agent = container(template, "syncline-agent")
    filled = [flag.replace("$(SYNCLINE_NODE)", "node-7").replace("$(POD_IP)", "fd00::7") for flag in agent["args"]]
    read = agent_settings(filled, {})
    assert ("rl", "pool", "node-7", "eu-1") == (read.namespace, read.pool, read.node, read.cluster)
    assert "fd00::7" == read.host
    assert [store_url(pool.spec.weight_source.weight_store)] == list(read.stores)[-1:]
    assert ("reload" if shape == "reload" else "arm") == read.engine
    gateway = container(template, "syncline-gateway")
    told = gateway_settings([flag.replace("$(POD_IP)", "fd00::7") for flag in gateway["args"]], {})
    assert (pool.spec.gateway.port, "fd00::7") == (told.port, told.host)
    assert names.TARGET == str(told.target) == str(read.target)
    assert told.socket == read.gateway_socket


def test_the_policy_is_a_target_file_that_an_agent_reads() -> None:
    plain = policy_map(pool_of(), None)["data"]["target.json"]
    assert Target("run", generation=3) == parse_target(plain)
    bounded = pool_of(
        suspend=True,
        versionPolicy={
            "type": "Pinned",
            "version": 7,
            "requestPolicy": "Drain",
            "maxVersionLag": 0,
            "maxLagSeconds": 60,
        },
    )
    expected = Target("run", "main", Policy.DRAIN, 7, True, 3, 0, 60)
    assert expected == parse_target(policy_map(bounded, None)["data"]["target.json"])


def test_a_policy_has_another_generation_exactly_when_it_says_something_else() -> None:
    first = policy_map(pool_of(generation=3), None)
    scaled = policy_map(pool_of(generation=4, replicas=9), first)
    assert first == scaled
    suspended = policy_map(pool_of(generation=5, suspend=True), scaled)
    assert 5 == policy_generation(suspended)
    broken = {"data": {"target.json": '{"run": '}}
    assert 6 == policy_generation(policy_map(pool_of(generation=6), broken))


def test_a_template_keeps_what_it_says_and_gets_what_an_engine_needs() -> None:
    made = child(pool_of(), DEPLOYMENTS)["spec"]["template"]
    engine = container(made, "engine")
    theirs = RESTRICTED["spec"]["containers"][0]
    assert (theirs["image"], theirs["args"]) == (engine["image"], engine["args"])
    assert "command" not in engine
    variables = {item["name"]: item.get("value", item.get("valueFrom")) for item in engine["env"]}
    assert len(variables) == len(engine["env"])
    assert "/syncline/arm:/app" == variables["PYTHONPATH"]
    assert {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}} == variables["SYNCLINE_POD"]
    assert ("/syncline/node/arm.sock", "pool") == (variables["SYNCLINE_ARM_SOCKET"], variables["SYNCLINE_POOL"])
    assert ["syncline-arm", "syncline-start", "syncline-gateway", "warm"] == [
        item["name"] for item in made["spec"]["initContainers"]
    ]
    assert RESTRICTED["spec"]["topologySpreadConstraints"] == made["spec"]["topologySpreadConstraints"]
    assert "engine" == made["metadata"]["labels"]["app"]


def test_a_key_pair_and_a_token_are_in_the_agent_alone() -> None:
    pool = pool_of(**SHAPES["everything"])
    assert "weights" not in json.dumps(child(pool, DEPLOYMENTS)).replace("s3://weights", "")
    assert "engine-key" not in json.dumps(child(pool, DEPLOYMENTS)).replace("syncline-engine-key", "")
    sidecar = child(pool_of(agent__mode="Sidecar"), DEPLOYMENTS)["spec"]["template"]
    for name in ("engine", "warm", "syncline-gateway", "syncline-start"):
        assert "secretKeyRef" not in json.dumps(container(sidecar, name))
    assert "secretKeyRef" in json.dumps(container(sidecar, "syncline-agent"))
    assert sidecar["spec"]["automountServiceAccountToken"] is False
    assert child(pool, DAEMON_SETS)["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_agents_run_where_engines_may_and_beside_them_where_no_nodes_are_named() -> None:
    named = child(pool_of(), DAEMON_SETS)["spec"]["template"]["spec"]
    assert {"gpu": "yes"} == named["nodeSelector"]
    assert "affinity" not in named
    plain = rollout_pool("pool")
    plain["metadata"] |= {"namespace": "rl", "uid": "7a1f", "generation": 1}
    beside = child(RolloutPool.read(plain), DAEMON_SETS)["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    (term,) = beside["requiredDuringSchedulingIgnoredDuringExecution"]
    assert {"syncline.dev/pool": "pool", "syncline.dev/role": "engine"} == term["labelSelector"]["matchLabels"]


def test_only_agents_reach_the_port_by_which_weights_may_be_changed() -> None:
    policies = [d["spec"] for kind, d in children(observed_of(pool_of())) if kind.kind == "NetworkPolicy"]
    opened = {rule["ports"][0]["port"]: rule["from"] for policy in policies for rule in policy["ingress"]}
    assert {8100: [{"namespaceSelector": {}}], 9401: [{"namespaceSelector": {}}]} == {
        port: opened[port] for port in (8100, 9401)
    }
    only = {"podSelector": {"matchLabels": {"syncline.dev/pool": "pool", "syncline.dev/role": "agent"}}}
    assert [only] == opened[8000]


def test_a_template_that_no_pod_can_be_made_of_is_refused_with_its_field(
    cluster: Cluster, levels: dict[str, str]
) -> None:
    found = rollout_pool("pool")
    found["metadata"] |= {"namespace": levels["privileged"], "uid": "7a1f", "generation": 1}
    wrong = changed(found, template__spec__terminationGracePeriod=3)
    deployment = child(RolloutPool.read(wrong), DEPLOYMENTS)
    assert "terminationGracePeriod" in tried(cluster, [whole(DEPLOYMENTS, deployment)])


@pytest.mark.parametrize("mode", ["Node", "Sidecar"])
def test_what_syncline_adds_makes_a_pod_ready_by_the_proof_of_its_weights_alone(mode: str) -> None:
    spec = child(pool_of(agent__mode=mode), DEPLOYMENTS)["spec"]["template"]["spec"]
    probes = [
        item["readinessProbe"] for item in (*spec["containers"], *spec["initContainers"]) if "readinessProbe" in item
    ]
    assert [{"path": "/readyz", "port": 8100}] == [probe["httpGet"] for probe in probes]


def test_no_pod_is_made_where_no_gpu_or_no_agent_is_free_for_it() -> None:
    spec = child(pool_of(), DEPLOYMENTS)["spec"]
    assert {"maxUnavailable": "25%", "maxSurge": 0} == spec["strategy"]["rollingUpdate"]
    (apart,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert "kubernetes.io/hostname" == apart["topologyKey"]
    assert spec["selector"] == apart["labelSelector"]
    beside = child(pool_of(agent__mode="Sidecar"), DEPLOYMENTS)["spec"]["template"]["spec"]
    assert "affinity" not in beside


def test_pods_that_do_not_serve_hold_up_no_drain_and_an_agent_calls_no_other_nodes_engine() -> None:
    found = [(resource.kind, document) for resource, document in children(observed_of(pool_of()))]
    (budget,) = (document["spec"] for kind, document in found if kind == "PodDisruptionBudget")
    assert ("25%", "AlwaysAllow") == (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"])
    services = {document["metadata"]["name"]: document["spec"] for kind, document in found if kind == "Service"}
    assert {"pool", "pool-each", "pool-local"} == services.keys()
    local = services["pool-local"]
    assert ("Local", True) == (local["internalTrafficPolicy"], local["publishNotReadyAddresses"])
    agent = container(child(pool_of(), DAEMON_SETS)["spec"]["template"], "syncline-agent")
    assert "--engine-url=http://pool-local.rl.svc:8000" in agent["args"]
