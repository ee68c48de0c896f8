"""One Kubernetes API server for all tests of the operator: KUBECONFIG's, else one that is started here."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline_operator.testing.control_plane import Cluster, find_programs, start_control_plane

CRDS = Path(__file__).resolve().parents[2] / "crds"
NAMES = ("rolloutpools.syncline.dev", "trainingruns.syncline.dev")
MISSING = "no Kubernetes API server: set KUBECONFIG, or KUBEBUILDER_ASSETS to what setup-envtest downloads "
"(docs/kubernetes.md)"


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without Syncline's kinds, unless KUBECONFIG's cluster has them."""
    folder = tmp_path_factory.mktemp("control-plane")
    if named := os.environ.get("KUBECONFIG"):
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            pytest.fail("KUBECONFIG is set and there is no kubectl on the path")
        yield Cluster(kubectl, Path(named), folder / "cache")
        return
    programs = find_programs(os.environ)
    if programs is None:
        pytest.skip(MISSING)
    plane = start_control_plane(programs, folder / "plane")
    yield plane.cluster
    plane.stop()


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster) -> Iterator[Cluster]:
    """With Syncline's kinds, applied as a user does. What was not there before goes again."""
    had = bare_cluster.told("get", "crd", "--ignore-not-found", "--output=name", *NAMES).split()
    bare_cluster.told("apply", "--filename", str(CRDS))
    bare_cluster.told("wait", "--for=condition=Established", "--timeout=60s", "crd", *NAMES)
    yield bare_cluster
    if os.environ.get("KUBECONFIG"):
        own = [name for name in NAMES if f"customresourcedefinition.apiextensions.k8s.io/{name}" not in had]
        if own:
            bare_cluster.told("delete", "crd", *own)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for the tests of one file."""
    name = f"syncline-test-{uuid.uuid4().hex[:8]}"
    cluster.told("create", "namespace", name)
    yield name
    cluster.told("delete", "namespace", name, "--wait=false")
