"""What every reconcile stands on, in processes of its own at a real API server, while networks, servers and leaders fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from syncline.clock import SystemClock
from syncline.testing.seaweed import end_process, free_ports
from syncline_operator.testing.control_plane import Cluster, ControlPlane, find_programs, start_control_plane
from syncline_operator.testing.relay import Relay, kubeconfig

COPIER = Path(__file__).parent / "copier.py"
LABEL = "syncline.test/copy"
PATIENCE_S = 60.0


class Copier:
    """One process of the operator in copier.py."""

    def __init__(self, config: Path, namespace: str, identity: str, folder: Path, **given: Any) -> None:
        self.identity = identity
        (self._port,) = free_ports(1)
        arguments = {
            "lease_in": namespace,
            "namespaces": [namespace],
            "identity": identity,
            "port": self._port,
        } | given
        self.log = folder / f"{identity}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(COPIER), json.dumps(arguments)],
                env={**os.environ, "KUBECONFIG": str(config)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def ask(self, path: str) -> tuple[int, str]:
        """Status and text; 0 while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.ask("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    @property
    def leads(self) -> bool:
        return self.metric("syncline_operator_leading") == 1

    @property
    def ready(self) -> bool:
        return self.ask("/readyz")[0] == 200

    @property
    def alive(self) -> bool:
        return self.ask("/livez")[0] == 200


class Maps:
    """The ConfigMaps of one namespace, by kubectl."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def put(self, name: str, **data: str) -> None:
        metadata = {"name": name, "labels": {LABEL: "original"}}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        self._told("apply", "--filename=-", given=json.dumps(document))

    def delete(self, name: str) -> None:
        self._told("delete", "configmap", name)

    def get(self, name: str) -> dict[str, Any] | None:
        found = self._told("get", "configmap", name, "--ignore-not-found", "--output=json", "--show-managed-fields")
        return json.loads(found) if found else None

    def data(self, name: str) -> dict[str, str] | None:
        found = self.get(name)
        return None if found is None else found["data"]

    def _told(self, *arguments: str, given: str | None = None) -> str:
        return self.cluster.told("--namespace", self.namespace, *arguments, given=given)


def until(true: Callable[[], bool], *copiers: Copier) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while not true():
        if clock.monotonic() > deadline:
            logs = "\n".join(f"{copier.identity}: {copier.log.read_text()[-3000:]}" for copier in copiers)
            raise AssertionError(f"did not come about in {PATIENCE_S:g} s; the logs end:\n{logs}")
        clock.sleep(0.1)


@pytest.fixture
def own(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test: operators of several would take each other's Lease."""
    name = f"syncline-test-{uuid.uuid4().hex[:8]}"
    cluster.told("create", "namespace", name)
    yield name
    cluster.told("delete", "namespace", name, "--wait=false")


@pytest.fixture
def relay(cluster: Cluster, tmp_path: Path) -> Iterator[Relay]:
    with Relay(cluster, tmp_path) as relay:
        yield relay


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Copier]]:
    with ExitStack() as undo:

        def begin(config: Path, namespace: str, identity: str = "first", **given: Any) -> Copier:
            copier = Copier(config, namespace, identity, tmp_path, **given)
            undo.callback(end_process, copier.process)
            return copier

        yield begin


def test_changes_are_followed_and_nothing_is_written_while_nothing_changes(
    relay: Relay, cluster: Cluster, own: str, start: Callable[..., Copier]
) -> None:
    maps = Maps(cluster, own)
    maps.put("early", a="1")
    first = start(relay.kubeconfig, own, list_s=0.5)
    until(lambda: maps.data("early-copy") == {"by": "first", "a": "1"}, first)
    maps.put("late", a="1")
    until(lambda: maps.data("late-copy") == {"by": "first", "a": "1"}, first)
    maps.put("late", b="2")
    until(lambda: maps.data("late-copy") == {"by": "first", "b": "2"}, first)
    maps.delete("early")
    until(lambda: maps.get("early-copy") is None, first)
    maps.delete("late-copy")
    until(lambda: maps.data("late-copy") == {"by": "first", "b": "2"}, first)

    def writes() -> list[str]:
        return [asked.target for asked in relay.asked if asked.writes and "/leases" not in asked.target]

    until(lambda: any("/events" in target for target in writes()), first)
    before, lists = writes(), first.metric('syncline_operator_lists_total{kind="ConfigMap",outcome="done"}')
    looks = first.metric('syncline_operator_reconcile_seconds_count{kind="ConfigMap",outcome="done"}')
    until(
        lambda: (
            first.metric('syncline_operator_lists_total{kind="ConfigMap",outcome="done"}') > lists + 1
            and first.metric('syncline_operator_reconcile_seconds_count{kind="ConfigMap",outcome="done"}') > looks + 3
        ),
        first,
    )
    assert before == [target for target in writes() if "/events" not in target or target in before]
    assert (True, True, True) == (first.ready, first.alive, first.leads)
    assert 0 == first.metric('syncline_operator_missed_events_total{kind="ConfigMap"}')

    original = maps.get("late")
    assert original is not None  # as its user made it: no annotation, no finalizer, no field of the operator's
    assert {"kubectl-client-side-apply"} == {entry["manager"] for entry in original["metadata"]["managedFields"]}
    assert "finalizers" not in original["metadata"]

    first.process.send_signal(signal.SIGTERM)
    assert 0 == first.process.wait(timeout=60), first.log.read_text()[-3000:]
    holder = cluster.told("get", "lease", "syncline-operator", "-n", own, "-o=jsonpath={.spec.holderIdentity}")
    assert "" == holder


def test_a_leader_that_was_frozen_writes_nothing_after_another_began(
    relay: Relay, cluster: Cluster, own: str, start: Callable[..., Copier]
) -> None:
    maps = Maps(cluster, own)
    maps.put("led", turn="1")
    first = start(relay.kubeconfig, own, "first")
    until(lambda: maps.data("led-copy") == {"by": "first", "turn": "1"}, first)
    second = start(relay.kubeconfig, own, "second")
    until(lambda: second.ready, second)  # ready without leading, or a roll-out of two would never end
    assert (True, False) == (first.leads, second.leads)

    first.process.send_signal(signal.SIGSTOP)
    try:
        maps.put("led", turn="2")
        until(lambda: maps.data("led-copy") == {"by": "second", "turn": "2"}, second)
        written = maps.get("led-copy")
    finally:
        first.process.send_signal(signal.SIGCONT)
    until(lambda: first.ready and not first.leads, first)
    maps.put("other", turn="3")
    until(lambda: maps.data("other-copy") == {"by": "second", "turn": "3"}, first, second)
    assert written == maps.get("led-copy")
    assert second.leads

    second.process.kill()
    until(lambda: first.leads, first, second)
    until(lambda: maps.data("led-copy") == {"by": "first", "turn": "2"}, first)


def test_what_a_silent_watch_swallows_is_found_counted_and_ends_in_a_failing_probe(
    relay: Relay, cluster: Cluster, own: str, start: Callable[..., Copier]
) -> None:
    maps = Maps(cluster, own)
    maps.put("going", a="1")
    first = start(relay.kubeconfig, own, list_s=1)
    until(lambda: maps.data("going-copy") is not None, first)
    assert first.alive
    missed = 'syncline_operator_missed_events_total{kind="ConfigMap"}'
    relay.freeze_watches()
    maps.put("unheard", a="1")
    until(lambda: maps.data("unheard-copy") == {"by": "first", "a": "1"}, first)
    maps.delete("going")
    until(lambda: maps.get("going-copy") is None, first)
    until(lambda: first.metric(missed) >= 3, first)  # both copies and one original, or more

    def stuck() -> bool:
        maps.put("unheard", a=uuid.uuid4().hex)
        return not first.alive

    until(stuck, first)
    assert "the watch of configmaps is stuck" in first.ask("/livez")[1]
    relay.thaw()
    until(lambda: first.alive, first)


def test_a_watch_that_fell_silent_is_opened_anew_and_misses_nothing(
    relay: Relay, cluster: Cluster, own: str, start: Callable[..., Copier]
) -> None:
    maps = Maps(cluster, own)
    maps.put("going", a="1")
    first = start(relay.kubeconfig, own, silent_s=1.5)
    until(lambda: maps.data("going-copy") is not None, first)
    relay.forget_watches()
    maps.put("soon", a="1")
    maps.delete("going")
    until(lambda: maps.data("soon-copy") == {"by": "first", "a": "1"}, first)
    until(lambda: maps.get("going-copy") is None, first)
    assert 1 == first.metric('syncline_operator_lists_total{kind="ConfigMap",outcome="done"}')


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that a test may break."""
    programs = find_programs(os.environ)
    if programs is None:
        pytest.skip("breaking an API server needs one's own: set KUBEBUILDER_ASSETS (docs/kubernetes.md)")
    plane = start_control_plane(programs, tmp_path_factory.mktemp("broken") / "plane")
    yield plane
    plane.stop()


def test_an_api_server_that_comes_back_is_followed_on_though_it_forgot_the_past(
    plane: ControlPlane, tmp_path: Path, start: Callable[..., Copier]
) -> None:
    with ExitStack() as undo:
        relay = undo.enter_context(Relay(plane.cluster, tmp_path))
        maps = Maps(plane.cluster, "default")
        until(lambda: plane.cluster.run("get", "namespace", "default").returncode == 0)
        maps.put("before", a="1")
        first = start(relay.kubeconfig, "default", namespaces=[])  # of the whole cluster
        until(lambda: maps.data("before-copy") == {"by": "first", "a": "1"}, first)
        until(lambda: first.leads and any(asked.watches for asked in relay.asked), first)
        # Nothing that the watch hears of: its place is left behind.
        others = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"other-{turn}"}} for turn in range(9)]
        plane.cluster.told("create", "--filename=-", given="\n---\n".join(map(json.dumps, others)))
        server = plane.processes[0]
        server.kill()
        server.wait(timeout=60)
        until(lambda: not first.leads, first)
        assert first.alive  # starting anew would not bring the server back
        compact(plane)
        with (tmp_path / "server.log").open("wb") as out:
            again = subprocess.Popen(server.args, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        undo.callback(end_process, again)
        until(lambda: plane.cluster.run("get", "--raw", "/readyz").returncode == 0)
        maps.put("after", a="2")
        until(lambda: maps.data("after-copy") == {"by": "first", "a": "2"}, first)
        maps.put("before", a="3")
        until(lambda: maps.data("before-copy") == {"by": "first", "a": "3"}, first)
        until(lambda: relay.expired > 0, first)
        assert (True, True) == (first.alive, first.leads)
        end_process(first.process)


def compact(plane: ControlPlane) -> None:
    """Have etcd forget all but the newest revision."""
    arguments = [str(argument) for argument in plane.processes[1].args]  # type: ignore[union-attr]
    url = arguments[arguments.index("--listen-client-urls") + 1]

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(url + path, data=json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    revision = ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    ask("/v3/kv/compaction", {"revision": revision, "physical": True})


def test_few_rights_are_enough_once_they_are_there_and_a_token_may_be_rotated(
    relay: Relay, cluster: Cluster, own: str, tmp_path: Path, start: Callable[..., Copier]
) -> None:
    def told(*arguments: str) -> str:
        return cluster.told("--namespace", own, *arguments).strip()

    told("create", "serviceaccount", "copier")
    verbs = "--verb=get,list,watch,create,patch,delete"
    told("create", "role", "copier-leads", "--verb=get,create,update", "--resource=leases.coordination.k8s.io")
    told("create", "role", "copier-tells", "--verb=create,patch", "--resource=events.events.k8s.io")

    def grant(role: str) -> None:
        told("create", "rolebinding", role, f"--role={role}", f"--serviceaccount={own}:copier")

    grant("copier-leads")
    grant("copier-tells")
    tokens = [told("create", "token", "copier") for _ in range(2)]
    file = tmp_path / "token"
    file.write_text(tokens[0], encoding="ascii")
    config = tmp_path / "config"
    config.write_text(kubeconfig(relay.url, token_file=file), encoding="utf-8")

    maps = Maps(cluster, own)
    maps.put("held", a="1")
    first = start(config, own, stream_s=2, token_s=1)
    until(lambda: 'cannot list resource "configmaps"' in first.ask("/readyz")[1], first)
    assert 503 == first.ask("/readyz")[0]
    assert [] == [asked for asked in relay.asked if asked.target == "/apis"]  # kinds are looked for once only
    told("create", "role", "copier", verbs, "--resource=configmaps")
    grant("copier")
    until(lambda: maps.data("held-copy") == {"by": "first", "a": "1"}, first)

    def tokens_of_watches() -> set[str | None]:
        return {asked.authorization for asked in relay.asked if asked.watches}

    until(lambda: tokens_of_watches() == {f"Bearer {tokens[0]}"}, first)
    file.write_text(tokens[1], encoding="ascii")
    until(lambda: f"Bearer {tokens[1]}" in tokens_of_watches(), first)
    maps.put("held", a="2")
    until(lambda: maps.data("held-copy") == {"by": "first", "a": "2"}, first)
    assert {f"Bearer {token}" for token in tokens} == {asked.authorization for asked in relay.asked}
    failed = re.findall(
        r'^syncline_operator_api_errors_total.*code="40[13]",method="(.*?)"', first.ask("/metrics")[1], re.M
    )
    assert ["GET"] == failed  # the lists before the right was there
