"""A real Kubernetes API server on loopback, etcd behind it, ended by process id. No nodes: nothing runs in it.

Everything lies in the folder that it is given. Where the system has `setpriv`, both processes end with the one that
started them, however that ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from Crypto.PublicKey import ECC

from syncline.clock import Clock, SystemClock
from syncline.errors import SynclineError
from syncline.testing.seaweed import end_process, free_ports

TOKEN = "admintoken"
START_S = 60.0
START_TRIES = 3
WORDS = 1500
"""Of a log that are told when a process does not come up."""
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
CACHES = (
    ".local/share/kubebuilder-envtest/k8s/*",
    ".cache/kubebuilder-envtest/k8s/*",
    ".cache/kube-*/bin",
)
"""Where setup-envtest and others leave programs, below a home."""


class ControlPlaneFailed(SynclineError):
    """The API server did not come up."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server and the kubectl that speaks to it."""

    kubectl: str
    kubeconfig: Path
    cache: Path

    def run(
        self, *arguments: str, given: str | None = None, timeout_s: float = 90.0
    ) -> subprocess.CompletedProcess[str]:
        """A call of kubectl, with this text on its standard input."""
        return subprocess.run(
            [self.kubectl, *arguments],
            input=given,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.cache)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def told(self, *arguments: str, given: str | None = None) -> str:
        """What kubectl printed; ControlPlaneFailed with its words where it refused."""
        done = self.run(*arguments, given=given)
        if done.returncode:
            raise ControlPlaneFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """An API server that this process started."""

    cluster: Cluster
    processes: tuple[subprocess.Popen[bytes], ...]

    def stop(self) -> None:
        """End both processes, the API server first; safe to call twice."""
        for process in self.processes:
            end_process(process)


def find_programs(environ: Mapping[str, str]) -> Path | None:
    """The folder with etcd, kube-apiserver and kubectl: KUBEBUILDER_ASSETS, else the newest that a tool left here."""
    if named := environ.get("KUBEBUILDER_ASSETS"):
        if missing := [name for name in PROGRAMS if not (Path(named) / name).exists()]:
            raise ControlPlaneFailed(
                f"KUBEBUILDER_ASSETS={named} holds no {', '.join(missing)}; setup-envtest brings them"
            )
        return Path(named)
    home = Path(environ.get("HOME", "/"))
    found = [Path("/usr/local/kubebuilder/bin"), *(path for form in CACHES for path in sorted(home.glob(form)))]
    whole = [path for path in found if all((path / name).exists() for name in PROGRAMS)]
    return whole[-1] if whole else None


def start_control_plane(programs: Path, folder: Path, *, clock: Clock | None = None) -> ControlPlane:
    """Start etcd and the API server, and wait until it is ready; ControlPlaneFailed with their last words otherwise."""
    clock = clock or SystemClock()
    folder.mkdir(parents=True, exist_ok=True)
    _write_keys(folder)
    for attempt in range(START_TRIES):
        started = _start(programs, folder / f"try-{attempt}", folder, clock)
        if started is not None:
            return started
    logs = sorted(folder.glob("try-*/*.log"))
    words = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-WORDS:]}" for log in logs[-2:])
    raise ControlPlaneFailed(f"the API server did not come up in {START_TRIES} tries; its last words:\n{words}")


def _start(programs: Path, folder: Path, keys: Path, clock: Clock) -> ControlPlane | None:
    """One try: another process may take a port between its choice and its use."""
    folder.mkdir()
    client, peer, secure = free_ports(3)
    etcd_url = f"http://127.0.0.1:{client}"
    with ExitStack() as undo:
        etcd = _spawn(
            folder / "etcd.log",
            str(programs / "etcd"),
            *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--listen-client-urls", etcd_url),
            *("--advertise-client-urls", etcd_url, "--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        )
        undo.callback(end_process, etcd)
        server = _spawn(
            folder / "kube-apiserver.log",
            str(programs / "kube-apiserver"),
            *(f"--etcd-servers={etcd_url}", "--bind-address=127.0.0.1", f"--secure-port={secure}"),
            *(f"--cert-dir={folder / 'certs'}", f"--token-auth-file={keys / 'tokens.csv'}"),
            *(f"--service-account-key-file={keys / 'sa.pub'}", f"--service-account-signing-key-file={keys / 'sa.key'}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC,Node"),
            *("--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true"),
        )
        undo.callback(end_process, server)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(secure, folder / "certs" / "apiserver.crt"), encoding="utf-8")
        cluster = Cluster(str(programs / "kubectl"), kubeconfig, folder / "cache")
        deadline = clock.monotonic() + START_S
        while clock.monotonic() < deadline and etcd.poll() is None and server.poll() is None:
            if cluster.run("get", "--raw", "/readyz").returncode == 0:
                undo.pop_all()
                return ControlPlane(cluster, (server, etcd))
            clock.sleep(0.2)
    return None


def _spawn(log: Path, *command: str) -> subprocess.Popen[bytes]:
    setpriv = shutil.which("setpriv")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*((setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    atexit.register(end_process, process)
    return process


def _write_keys(folder: Path) -> None:
    key = ECC.generate(curve="P-256")
    (folder / "sa.key").write_text(key.export_key(format="PEM", use_pkcs8=False), encoding="utf-8")
    (folder / "sa.key").chmod(0o600)
    (folder / "sa.pub").write_text(key.public_key().export_key(format="PEM"), encoding="utf-8")
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n", encoding="utf-8")


def _kubeconfig(port: int, authority: Path) -> str:
    return f"""apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: admin}}}}]
clusters: [{{name: test, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{authority}"}}}}]
users: [{{name: admin, user: {{token: {TOKEN}}}}}]
"""
