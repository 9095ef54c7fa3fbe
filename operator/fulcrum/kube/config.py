"""Where the API server is, and with which identity it is asked: a kubeconfig, or the service account of a Pod."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fulcrum.kube.errors import ConfigError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration


async def load(kubeconfig: str | Path | None) -> Configuration:
    """Read `kubeconfig`; for None $KUBECONFIG, the Pod's service account or ~/.kube/config, whichever is there first.

    Errors: ConfigError.
    """
    import yaml
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    loaded = Configuration()
    named = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    try:
        if not named and os.environ.get("KUBERNETES_SERVICE_HOST"):
            # The token is read again every minute: it rotates.
            config.load_incluster_config(client_configuration=loaded)
        else:
            await config.load_kube_config(
                config_file=_existing(named), client_configuration=loaded, persist_config=False
            )
    except (config.ConfigException, yaml.YAMLError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The package answers a file of a wrong shape with whatever its lookups raise.
        raise ConfigError(f"{named or 'Kubernetes configuration'} cannot be used: {error}") from error
    # As client-go does it, no proxy of the environment stands between two processes of one machine.
    loaded.client_session_kwargs = {"trust_env": not _is_loopback(loaded.host)}
    return loaded


def _existing(named: str) -> str:
    files = named or str(Path("~/.kube/config").expanduser())
    if not any(Path(part).is_file() for part in files.split(os.pathsep) if part):
        raise ConfigError(f"{files}: there is no such kubeconfig")
    return files


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
