"""Where the API server is and how it knows this process: inside a cluster by the mounted account, elsewhere by
KUBECONFIG.

The token of a mounted account is replaced while the process runs: its file is read at every request, for the operator's
own client and for its watches alike. Nothing here asks a server anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config

from syncline.errors import Rejected

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCluster(Rejected):
    """Neither a mounted account nor a usable KUBECONFIG."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one API server."""

    configuration: Configuration
    """The official client's; brings the server's address, certificates, and what authenticates where no token file does."""
    token_file: Path | None = None

    def token(self) -> str | None:
        """The bearer token as of now; None where certificates authenticate."""
        if self.token_file is not None:
            return _read(self.token_file)
        held = str(self.configuration.api_key.get("BearerToken", ""))
        scheme, _, value = held.partition(" ")
        return value.strip() if scheme.lower() == "bearer" and value else held or None


async def find_access(environ: Mapping[str, str], *, account: Path = ACCOUNT) -> Access:
    """KUBECONFIG where it is set, else the mounted account, else ~/.kube/config."""
    if environ.get("KUBECONFIG"):
        return await _from_file(environ["KUBECONFIG"])
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if host and port and (account / "token").exists():
        return mounted(f"https://{f'[{host}]' if ':' in host else host}:{port}", account)
    return await _from_file(str(Path("~/.kube/config").expanduser()))


def mounted(server: str, account: Path) -> Access:
    """By a service account's mounted token and the cluster's own certificate authority."""
    configuration: Any = Configuration(host=server)
    authority = account / "ca.crt"
    if not authority.exists():
        raise NoCluster(f"{authority} does not exist; mount the service account's token (automountServiceAccountToken)")
    configuration.ssl_ca_cert = str(authority)
    return Access(configuration, account / "token")


async def _from_file(path: str) -> Access:
    configuration: Any = Configuration()
    try:
        await load_kube_config(path, client_configuration=configuration, persist_config=False)
        named = _token_file(Path(path))
    except (ConfigException, OSError, yaml.YAMLError) as error:
        raise NoCluster(
            f"no cluster to talk to: {error}; set KUBECONFIG to a file with a context, or run in a pod with a service account"
        ) from error
    return Access(configuration, named)


def _token_file(path: Path) -> Path | None:
    """What the current context names as `tokenFile`: the official client reads it once only."""
    if not path.is_file():
        return None  # several files in one KUBECONFIG: for people's machines, where nothing rotates
    content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    contexts = {entry["name"]: entry["context"] for entry in content.get("contexts", ())}
    users = {entry["name"]: entry["user"] for entry in content.get("users", ())}
    user = users.get(contexts.get(content.get("current-context"), {}).get("user"), {})
    return path.parent / user["tokenFile"] if "tokenFile" in user else None


def _read(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoCluster(f"{path} cannot be read: {error}; mount the service account's token") from error
    if not token:
        raise NoCluster(f"{path} is empty; mount the service account's token")
    return token
