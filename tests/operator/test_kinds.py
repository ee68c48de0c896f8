"""Both kinds on a real API server, by a real kubectl."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from syncline.errors import StoreMisused
from syncline.store.s3_location import S3Location
from syncline_operator.api import RolloutPool, TrainingRun
from syncline_operator.api.crds import rollout_pools, training_runs
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import changed, rollout_pool, training_run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
WHEN = "2026-11-30T12:00:00Z"
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AsSpecified",
    "message": "All is as asked for.",
    "lastTransitionTime": WHEN,
}
DENIED = {
    **READY,
    "status": "False",
    "reason": "StoreDenied",
    "message": "s3://weights/team-a refuses the key pair of Secret weights; correct it.",
}
RUN_STATUS = {
    "observedGeneration": 1,
    "runName": "run",
    "lineage": "0f" * 16,
    "epoch": 4,
    "latestVersion": {"version": 812, "parentVersion": 811, "sizeBytes": 91_234_567, "changedFraction": "0.0113"},
    "latestAnchorVersion": 800,
    "consumerSummary": {"pools": 2, "nodes": 24, "provenNodes": 24, "versionLag": 1},
    "consumers": [{"cluster": "us", "namespace": "rl", "name": "pool", "currentVersion": 811, "versionLag": 1}],
    "conditions": [READY],
}
POOL_STATUS = {
    "observedGeneration": 1,
    "replicas": 24,
    "readyReplicas": 23,
    "currentReplicas": 20,
    "provenReplicas": 23,
    "selector": "syncline.dev/pool=pool",
    "targetVersion": 812,
    "currentVersion": 811,
    "versionLag": 1,
    "versions": [{"version": 812, "replicas": 20}, {"version": 811, "replicas": 3}],
    "conditions": [DENIED],
}


URIS = [
    *("s3://weights", "s3://weights/team-a", "s3://we.ights/A/b_c/d.e", "s3://abc/x..y", "s3://weights/" + "x" * 120),
    *("s3://weights/" + "x" * 121, "s3://ab/x", "s3://w..x/a", "s3://w.-x/a", "s3://10.0.0.1/a", "s3://Weights/a"),
    *(
        "s3://weights/a//b",
        "s3://weights/../a",
        "s3://weights/a/.",
        "s3://-weights/a",
        "s3://weights/a b",
        "gs://weights/a",
    ),
    *("s3://u:p@weights/a", "https://weights/a", "s3://" + "w" * 63 + "/a", "s3://" + "w" * 64 + "/a", "s3:///a"),
]
ENDPOINTS = [
    *(
        "https://s3.example.com",
        "http://store:8333",
        "https://10.0.0.1:9000",
        "http://[::1]:8333",
        "https://s3.example.com/",
    ),
    *(
        "s3.example.com",
        "ftp://s3.example.com",
        "https://s3.example.com/path",
        "https://k:s@s3.example.com",
        "https://",
        "http://a:0",
    ),
    *("http://a:99999", "http://a:65535", "http://a b"),
]


def adapter_takes(url: str) -> bool:
    try:
        S3Location.parse(url, {})
    except StoreMisused:
        return False
    return url.startswith("s3://")


def created(cluster: Cluster, namespace: str, found: dict[str, Any]) -> dict[str, Any]:
    flags = ("--namespace", namespace, "--output=json", "--filename=-")
    return json.loads(cluster.told("create", *flags, given=json.dumps(found)))


def tell(cluster: Cluster, namespace: str, of: str, status: dict[str, Any]) -> None:
    flags = ("--namespace", namespace, "--subresource=status", "--type=merge")
    cluster.told("patch", of, *flags, "--patch", json.dumps({"status": status}))


def table(printed: str) -> list[dict[str, str]]:
    """Rows of what `kubectl get` prints, by column."""
    lines = printed.rstrip().splitlines()
    starts = [found.start() for found in re.finditer(r"\S+", lines[0])]
    ends = [*starts[1:], None]
    cells = [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def without_age(row: dict[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if name != "AGE"}


def test_both_ways_to_apply_the_definitions_go_together(cluster: Cluster) -> None:
    folder = str(ROOT / "crds")
    plain = cluster.told("apply", "--dry-run=server", "--filename", folder)
    own = ("--server-side", "--force-conflicts", "--field-manager=test", "--dry-run=server")
    assert 2 == len(plain.splitlines())
    assert 2 == len(cluster.told("apply", *own, "--filename", folder).splitlines())


@pytest.mark.parametrize(("plural", "made"), [("trainingruns", training_runs()), ("rolloutpools", rollout_pools())])
def test_explain_has_words_for_every_field(cluster: Cluster, plural: str, made: dict[str, Any]) -> None:
    printed = cluster.told("explain", plural, "--recursive")
    names = set(re.findall(r"^\s+(\w+)\t<", printed, re.MULTILINE))
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert set(schema["spec"]["properties"]) | set(schema["status"]["properties"]) <= names
    for path in ("spec", "status"):
        told = cluster.told("explain", f"{plural}.{path}")
        assert "<no description>" not in told
        assert set(schema[path]["properties"]) == set(re.findall(r"^  (\w+)\t<", told, re.MULTILINE))


def test_explain_says_what_a_field_does_its_unit_and_its_default(cluster: Cluster) -> None:
    told = " ".join(cluster.told("explain", "trun.spec.retention.leasePeriod").split())
    assert "longer than any joiner's listing and first fetch. Default: 5m." in told
    told = " ".join(cluster.told("explain", "trun.spec.checkpointSource.completion.type").split())
    assert "ENUM: Stable Rename Marker" in told
    assert "the default, since it asks nothing of the trainer" in told


def test_what_is_left_out_gets_its_default(cluster: Cluster, namespace: str) -> None:
    run = TrainingRun.read(created(cluster, namespace, training_run("defaults")))
    assert ("defaults", "main", 50, "5m", "100Gi") == (
        run.run,
        run.spec.view,
        run.spec.publish_policy.anchor_every,
        run.spec.retention.lease_period,
        run.spec.distributor.state.size,
    )
    pool = created(cluster, namespace, rollout_pool("defaults"))
    assert 1 == pool["spec"]["replicas"]
    assert {"maxUnavailable": "25%", "maxSurge": 0} == pool["spec"]["updateStrategy"]["rollingUpdate"]
    assert {"type": "Latest", "requestPolicy": "Keep", "staleAction": "Keep", "unprovable": "Refuse"} == pool["spec"][
        "versionPolicy"
    ]
    assert ("Node", "Disk", "/var/lib/syncline") == (
        pool["spec"]["agent"]["mode"],
        pool["spec"]["agent"]["cache"]["medium"],
        pool["spec"]["agent"]["cache"]["hostPath"],
    )


@pytest.mark.parametrize("found", [training_run("reading"), rollout_pool("reading")], ids=["trun", "rpool"])
def test_the_models_fill_in_what_the_server_does(cluster: Cluster, namespace: str, found: dict[str, Any]) -> None:
    """One source: an object of a client that reads no defaults means the same to the operator."""
    kind = TrainingRun if found["kind"] == "TrainingRun" else RolloutPool
    there = created(cluster, namespace, found)
    assert kind.read(there).spec == kind.model_validate(found).spec


def test_a_template_keeps_what_only_pods_know(cluster: Cluster, namespace: str) -> None:
    pod = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
        "spec": {
            "hostIPC": True,
            "containers": [
                {"name": "engine", "image": "example.com/e:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }
    there = created(cluster, namespace, rollout_pool("keeping", template=pod))
    assert pod == there["spec"]["template"]
    template = RolloutPool.read(there).spec.template
    assert template is not None
    assert pod == template.raw


def test_two_owners_of_a_template_share_its_containers(cluster: Cluster, namespace: str) -> None:
    flags = ("--namespace", namespace, "--server-side", "--filename=-")
    cluster.told("apply", *flags, "--field-manager=team", given=json.dumps(rollout_pool("shared")))
    sidecar = {
        "apiVersion": "syncline.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": "shared"},
        "spec": {"template": {"spec": {"containers": [{"name": "proxy", "image": "example.com/proxy:1"}]}}},
    }
    # A manager that applies its part alone is held to what every pool needs only once it is merged.
    cluster.told("apply", *flags, "--field-manager=mesh", "--validate=ignore", given=json.dumps(sidecar))
    names = cluster.told(
        "get", "rpool", "shared", "--namespace", namespace, "--output=jsonpath={.spec.template.spec.containers[*].name}"
    )
    assert ["engine", "proxy"] == sorted(names.split())


def test_two_managers_that_want_different_values_are_told_of_each_other(cluster: Cluster, namespace: str) -> None:
    flags = ("--namespace", namespace, "--server-side", "--filename=-")
    found = rollout_pool("contended", suspend=True)
    cluster.told("apply", *flags, "--field-manager=team", given=json.dumps(found))
    refused = cluster.run("apply", *flags, "--field-manager=other", given=json.dumps(changed(found, suspend=False)))
    assert 'conflict with "team": .spec.suspend' in refused.stderr


def test_get_says_whether_it_is_healthy_which_version_and_how_far_behind(cluster: Cluster, namespace: str) -> None:
    created(cluster, namespace, training_run("seen"))
    created(cluster, namespace, rollout_pool("seen", replicas=24))
    tell(cluster, namespace, "trun/seen", RUN_STATUS)
    tell(cluster, namespace, "rpool/seen", POOL_STATUS)
    run = table(cluster.told("get", "trun", "seen", "--namespace", namespace))
    assert [
        {
            "NAME": "seen",
            "VERSION": "812",
            "ANCHOR": "800",
            "CHANGED": "0.0113",
            "POOLS": "2",
            "LAG": "1",
            "HEALTHY": "True",
            "REASON": "AsSpecified",
        }
    ] == [without_age(row) for row in run]
    pool = table(cluster.told("get", "rpool", "seen", "--namespace", namespace))
    assert [
        {
            "NAME": "seen",
            "DESIRED": "24",
            "READY": "23",
            "CURRENT": "20",
            "VERSION": "811",
            "TARGET": "812",
            "LAG": "1",
            "HEALTHY": "False",
            "REASON": "StoreDenied",
        }
    ] == [without_age(row) for row in pool]
    wide = cluster.told("get", "rpool", "seen", "--namespace", namespace, "--output=wide")
    assert "s3://weights/team-a refuses the key pair of Secret weights; correct it." in wide


@pytest.mark.parametrize("uri_at", ["uri", "endpoint"])
def test_what_a_server_lets_through_the_store_s_adapter_takes(cluster: Cluster, namespace: str, uri_at: str) -> None:
    """And the other way, but for what only the server is strict about: a slash at the end."""
    uris = URIS if uri_at == "uri" else [f"s3://weights/run?endpoint={endpoint}" for endpoint in ENDPOINTS]
    tried = URIS if uri_at == "uri" else ENDPOINTS
    found = [rollout_pool(f"u{n}", **{f"weightSource__weightStore__{uri_at}": text}) for n, text in enumerate(tried)]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    flags = ("--namespace", namespace, "--dry-run=server", "--validate=ignore", "--output=name", "--filename=-")
    made = set(cluster.run("create", *flags, given=given).stdout.split())
    expected = [text for text, uri in zip(tried, uris, strict=True) if adapter_takes(uri)]
    assert expected == [text for n, text in enumerate(tried) if f"rolloutpool.syncline.dev/u{n}" in made]
    assert 0 < len(expected) < len(tried)


def test_one_word_names_all_of_it_and_a_run_s_pools_can_be_selected(cluster: Cluster, namespace: str) -> None:
    created(cluster, namespace, rollout_pool("mine", weightSource__runName="mine"))
    names = ("--namespace", namespace, "--output=name")
    assert {"rolloutpool.syncline.dev/mine"} <= set(cluster.told("get", "syncline", *names).split())
    selected = cluster.told("get", "rpool", *names, "--field-selector=spec.weightSource.runName=mine")
    assert ["rolloutpool.syncline.dev/mine"] == selected.split()


@pytest.mark.parametrize(
    ("of", "kind", "status"),
    [("trun/told", TrainingRun, RUN_STATUS), ("rpool/told", RolloutPool, POOL_STATUS)],
    ids=["trun", "rpool"],
)
def test_a_status_is_kept_whole_and_can_be_waited_for(
    cluster: Cluster, namespace: str, of: str, kind: type[TrainingRun | RolloutPool], status: dict[str, Any]
) -> None:
    found = training_run("told") if kind is TrainingRun else rollout_pool("told")
    before = created(cluster, namespace, {**found, "status": status})
    assert "status" not in before
    tell(cluster, namespace, of, status)
    there = json.loads(cluster.told("get", of, "--namespace", namespace, "--output=json"))
    assert status == there["status"]
    assert before["metadata"]["generation"] == there["metadata"]["generation"]
    read = kind.read(there).status
    assert read is not None
    assert kind.read({**there, "status": read.to_json()}).status == read
    state = status["conditions"][0]["status"]
    waited = cluster.told("wait", of, "--namespace", namespace, f"--for=condition=Ready={state}", "--timeout=30s")
    assert "condition met" in waited


def test_the_models_and_the_definitions_know_the_same_status_fields(cluster: Cluster, namespace: str) -> None:
    """What a model has and a definition lacks, a server drops in silence."""
    created(cluster, namespace, training_run("pruned"))
    tell(cluster, namespace, "trun/pruned", {"epoch": 1, "unheardOf": 2})
    there = json.loads(cluster.told("get", "trun/pruned", "--namespace", namespace, "--output=json"))
    assert {"epoch": 1} == there["status"]


def test_a_pool_is_scaled_like_any_workload(cluster: Cluster, namespace: str) -> None:
    created(cluster, namespace, rollout_pool("scaled"))
    tell(cluster, namespace, "rpool/scaled", POOL_STATUS)
    cluster.told("scale", "rpool/scaled", "--namespace", namespace, "--replicas=5")
    scale = json.loads(
        cluster.told("get", "rpool/scaled", "--namespace", namespace, "--subresource=scale", "--output=json")
    )
    assert 5 == scale["spec"]["replicas"]
    assert {"replicas": 24, "selector": "syncline.dev/pool=pool"} == scale["status"]
    refused = cluster.run("scale", "rpool/scaled", "--namespace", namespace, "--replicas=-1")
    assert 0 != refused.returncode


def test_a_name_of_fifty_two_characters_is_taken(cluster: Cluster, namespace: str) -> None:
    name = "x" * 52
    assert name == created(cluster, namespace, rollout_pool(name))["metadata"]["name"]


def test_a_volume_may_grow_and_a_pin_may_move(cluster: Cluster, namespace: str) -> None:
    created(cluster, namespace, training_run("growing"))
    created(cluster, namespace, rollout_pool("moving"))
    of, merge = ("--namespace", namespace), ("--type=merge", "--patch")
    for change in ({"distributor": {"state": {"size": "200Gi"}}}, {"suspend": True}, {"deletionPolicy": "Delete"}):
        assert "patched" in cluster.told("patch", "trun/growing", *of, *merge, json.dumps({"spec": change}))
    for change in ({"type": "Pinned", "version": 7}, {"version": 8}, {"type": "Latest", "version": None}):
        patch = json.dumps({"spec": {"versionPolicy": change}})
        assert "patched" in cluster.told("patch", "rpool/moving", *of, *merge, patch)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_taken_as_it_is(cluster: Cluster, namespace: str, example: Path) -> None:
    kinds = re.findall(r"^kind: (\w+)$", example.read_text(encoding="utf-8"), re.MULTILINE)
    made = cluster.told("apply", "--namespace", namespace, "--dry-run=server", "--filename", str(example))
    assert [kind.lower() for kind in kinds] == [re.split(r"[./]", line)[0] for line in made.splitlines()]


def test_there_is_an_example_for_each_set_up() -> None:
    names = {path.stem for path in EXAMPLES}
    expected = {"one-region", "two-regions-trainer", "two-regions-rollout", "spot", "air-gapped", "workload-identity"}
    assert expected == names
