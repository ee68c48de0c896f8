"""Requests to a real API server: what they find, what each failure is called, and what goes along as a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from syncline.clock import SystemClock
from syncline_operator.kube.access import Access, NoCluster, find_access, mounted
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.errors import (
    Absent,
    Expired,
    FieldsTaken,
    Malformed,
    Occupied,
    Outdated,
    Refused,
    Throttled,
    Unreachable,
)
from syncline_operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, FieldManager, ObjectKey
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.relay import Relay, kubeconfig

MINE = FieldManager("mine")


def run(kubeconfig: Path, scenario: Callable[[KubeClient], Awaitable[None]], **settings: Any) -> OperatorMetrics:
    metrics = OperatorMetrics()

    async def go() -> None:
        access = await find_access({"KUBECONFIG": str(kubeconfig)})
        async with KubeClient(access, metrics=metrics, clock=SystemClock(), **settings) as client:
            await scenario(client)

    asyncio.run(go())
    return metrics


@pytest.fixture
def relay(cluster: Cluster, tmp_path: Path) -> Iterator[Relay]:
    with Relay(cluster, tmp_path) as relay:
        yield relay


def config_map(namespace: str, name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_every_failure_has_a_name_that_says_what_to_do(cluster: Cluster, namespace: str) -> None:
    async def scenario(client: KubeClient) -> None:
        key = ObjectKey(CONFIG_MAPS, namespace, "named")
        with pytest.raises(Absent, match=r"reading ConfigMap .*/named"):
            await client.get(key)
        made = await client.create(CONFIG_MAPS, config_map(namespace, "named", a="1"), manager=MINE)
        with pytest.raises(Occupied, match="look at what is there"):
            await client.create(CONFIG_MAPS, config_map(namespace, "named"), manager=MINE)
        await client.replace(key, config_map(namespace, "named", a="2"), manager=MINE)
        with pytest.raises(Outdated, match="look again"):
            await client.replace(key, made, manager=MINE)
        with pytest.raises(FieldsTaken, match="conflict with"):
            theirs = config_map(namespace, "named", a="3")
            await client.apply(key, theirs, manager=FieldManager("theirs"), force=False)
        with pytest.raises(Malformed, match=r"\.dta: field not declared"):
            wrong = config_map(namespace, "named") | {"dta": {}}
            await client.apply(key, wrong, manager=MINE, force=True)
        with pytest.raises(Malformed, match="Invalid value"):
            bad = config_map(namespace, "-named")
            await client.create(CONFIG_MAPS, bad, manager=MINE)
        with pytest.raises(Outdated):
            await client.delete(key, uid="another", timeout_s=10)
        await client.delete(key, uid=made["metadata"]["uid"])
        with pytest.raises(Absent):
            await client.delete(key, uid=made["metadata"]["uid"])

    metrics = run(cluster.kubeconfig, scenario)
    conflicts = [
        metrics.registry.get_sample_value("syncline_operator_api_errors_total", {"method": method, "code": "409"})
        for method in ("POST", "PUT", "PATCH", "DELETE")
    ]
    assert [1, 1, 1, 1] == conflicts


def test_a_list_is_whole_however_many_pages_it_has(cluster: Cluster, namespace: str) -> None:
    async def scenario(client: KubeClient) -> None:
        for number in range(5):
            made = config_map(namespace, f"paged-{number}")
            made["metadata"]["labels"] = {"paged": "yes"}
            await client.create(CONFIG_MAPS, made, manager=MINE)
        found = await client.list(
            CONFIG_MAPS, namespace=namespace, labels="paged=yes", trim=lambda item: {"name": item["metadata"]["name"]}
        )
        assert [{"name": f"paged-{number}"} for number in range(5)] == found.items
        assert int(found.resource_version) > 0
        whole = await client.list(CONFIG_MAPS, namespace=namespace, labels="paged=yes")
        assert {("v1", "ConfigMap")} == {(item["apiVersion"], item["kind"]) for item in whole.items}

    run(cluster.kubeconfig, scenario, page=2)


def test_a_list_whose_moment_is_forgotten_between_two_pages_is_begun_anew(relay: Relay, namespace: str) -> None:
    # In the server's place: it keeps a list's moment for some minutes, whatever etcd forgets.
    async def scenario(client: KubeClient) -> None:
        for number in range(3):
            made = config_map(namespace, f"forgotten-{number}")
            made["metadata"]["labels"] = {"forgotten": "yes"}
            await client.create(CONFIG_MAPS, made, manager=MINE)
        names: list[str] = []

        def trim(document: dict[str, Any]) -> dict[str, Any]:
            names.append(document["metadata"]["name"][-1])
            if names in (["0"], ["0", "0", "1"]):
                relay.answer_next(410)
            return document

        found = await client.list(CONFIG_MAPS, namespace=namespace, labels="forgotten=yes", trim=trim)
        assert 3 == len(found.items)
        assert ["0", "0", "1", "0", "1", "2"] == names
        names.clear()
        with pytest.raises(Expired, match="read from the start"):
            await client.list(CONFIG_MAPS, namespace=namespace, trim=lambda item: (relay.answer_next(410), item)[1])

    run(relay.kubeconfig, scenario, page=1)


def test_a_kind_that_a_user_names_is_found_or_is_not_there(cluster: Cluster) -> None:
    async def scenario(client: KubeClient) -> None:
        assert DEPLOYMENTS == await client.find("apps/v1", "Deployment")
        assert PODS == await client.find("v1", "Pod")
        assert await client.find("apps/v1", "LeaderWorkerSet") is None
        assert await client.find("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet") is None

    run(cluster.kubeconfig, scenario)


def test_a_server_that_is_busy_or_down_or_silent_is_to_be_asked_again(relay: Relay, namespace: str) -> None:
    async def scenario(client: KubeClient) -> None:
        key = ObjectKey(CONFIG_MAPS, namespace, "any")
        relay.answer_next(429, retry_after=7)
        with pytest.raises(Throttled, match="ask again in 7 s") as throttled:
            await client.get(key)
        assert 7 == throttled.value.retry_after
        relay.answer_next(503)
        with pytest.raises(Unreachable, match="HTTP 503"):
            await client.get(key)
        relay.freeze()
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            await client.get(key, timeout_s=0.3)
        relay.thaw()
        with pytest.raises(Absent):
            await client.get(key)

    metrics = run(relay.kubeconfig, scenario)
    codes = [
        metrics.registry.get_sample_value("syncline_operator_api_errors_total", {"method": "GET", "code": code})
        for code in ("429", "503", "none", "404")
    ]
    assert [1, 1, 1, 1] == codes


def test_nothing_that_listens_is_unreachable(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(kubeconfig("http://127.0.0.1:9", token="any"), encoding="utf-8")

    async def scenario(client: KubeClient) -> None:
        with pytest.raises(Unreachable, match="ask again later"):
            await client.get(ObjectKey(CONFIG_MAPS, "default", "any"))

    run(config, scenario)


@pytest.mark.parametrize("found_by", ["mounted account", "KUBECONFIG"])
def test_a_token_that_was_rotated_goes_along_with_the_next_request(
    relay: Relay, cluster: Cluster, namespace: str, tmp_path: Path, found_by: str
) -> None:
    cluster.told("create", "serviceaccount", "--namespace", namespace, account := found_by.split()[0].lower())
    tokens = [cluster.told("create", "token", "--namespace", namespace, account).strip() for _ in range(2)]
    token = tmp_path / "token"
    token.write_text(tokens[0] + "\n", encoding="ascii")
    (tmp_path / "ca.crt").write_text(authority(cluster), encoding="ascii")
    config = tmp_path / "config"
    config.write_text(kubeconfig(relay.url, token_file=token), encoding="utf-8")

    async def go() -> None:
        if found_by == "KUBECONFIG":
            access = await find_access({"KUBECONFIG": str(config)})
        else:
            access = mounted(relay.url, tmp_path)
        async with KubeClient(access, metrics=OperatorMetrics(), clock=SystemClock()) as client:
            for now in tokens:
                token.write_text(now, encoding="ascii")
                with pytest.raises(Refused, match=f"system:serviceaccount:{namespace}:{account}"):
                    await client.get(ObjectKey(CONFIG_MAPS, namespace, "any"))

    asyncio.run(go())
    assert [f"Bearer {token}" for token in tokens] == [asked.authorization for asked in relay.asked]
    assert tokens[0] != tokens[1]


def test_a_mounted_account_trusts_the_cluster_s_own_authority_alone(cluster: Cluster, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))
    server = config["clusters"][0]["cluster"]["server"]
    (tmp_path / "token").write_text(config["users"][0]["user"]["token"], encoding="ascii")
    (tmp_path / "ca.crt").write_text(authority(cluster), encoding="ascii")
    key = ObjectKey(CONFIG_MAPS, "default", "none-such")

    async def ask(access: Access) -> None:
        async with KubeClient(access, metrics=OperatorMetrics(), clock=SystemClock()) as client:
            await client.get(key)

    with pytest.raises(Absent):
        asyncio.run(ask(mounted(server, tmp_path)))
    host, port = server.removeprefix("https://").split(":")
    inside = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(Absent):
        asyncio.run(ask(asyncio.run(find_access(inside, account=tmp_path))))
    untrusting = asyncio.run(find_access({"KUBECONFIG": str(cluster.kubeconfig)}))
    untrusting.configuration.ssl_ca_cert = None
    with pytest.raises(Unreachable, match="certificate verify failed"):
        asyncio.run(ask(untrusting))


def test_without_a_cluster_one_error_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="set KUBECONFIG"):
        asyncio.run(find_access({"KUBECONFIG": str(tmp_path / "none")}))
    with pytest.raises(NoCluster, match=r"ca\.crt does not exist"):
        mounted("https://127.0.0.1:1", tmp_path)
    (tmp_path / "ca.crt").write_text("", encoding="ascii")
    (tmp_path / "token").write_text("", encoding="ascii")
    with pytest.raises(NoCluster, match="is empty"):
        mounted("https://127.0.0.1:1", tmp_path).token()


def authority(cluster: Cluster) -> str:
    there = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    return Path(there["certificate-authority"]).read_text(encoding="ascii")
