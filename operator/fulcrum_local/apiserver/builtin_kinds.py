"""The built-in kinds: those that Fulcrum, its users and kubectl touch."""

from __future__ import annotations

from typing import Final

from fulcrum_local.apiserver.errors import qualified
from fulcrum_local.apiserver.kinds import ALL_VERBS, SCALE, Kind, Subresource

_STATUS: Final = "status"


def _kind(
    api_version: str,
    kind: str,
    plural: str,
    *,
    namespaced: bool = True,
    short: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    status: bool = False,
    generation: bool = False,
    subresources: tuple[Subresource, ...] = (),
    verbs: tuple[str, ...] = ALL_VERBS,
    storage: str = "",
) -> Kind:
    group, _, version = api_version.rpartition("/")
    subs = ((Subresource(name=_STATUS, kind=kind),) if status else ()) + subresources
    return Kind(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        list_kind=f"{kind}List",
        namespaced=namespaced,
        short_names=short,
        categories=categories,
        verbs=verbs,
        subresources=subs,
        storage=storage or qualified(plural, group),
        has_generation=generation,
        resets_status=status,
    )


_POD_SUBRESOURCES: Final = (
    Subresource(name="binding", kind="Binding", verbs=("create",)),
    Subresource(name="eviction", kind="Eviction", group="policy", version="v1", verbs=("create",)),
    Subresource(name="log", kind="Pod", verbs=("get",)),
)
_TOKEN: Final = Subresource(
    name="token", kind="TokenRequest", group="authentication.k8s.io", version="v1", verbs=("create",)
)
_FINALIZE: Final = Subresource(name="finalize", kind="Namespace", verbs=("update",))
_CREATE: Final = ("create",)
_AUTHZ: Final = "authorization.k8s.io/v1"
_AUTHN: Final = "authentication.k8s.io/v1"
_RBAC: Final = "rbac.authorization.k8s.io/v1"

BUILTIN_KINDS: Final = (
    _kind("v1", "ConfigMap", "configmaps", short=("cm",)),
    _kind("v1", "Endpoints", "endpoints", short=("ep",)),
    _kind("v1", "Event", "events", short=("ev",)),
    _kind(
        "v1", "Namespace", "namespaces", namespaced=False, short=("ns",), status=True, subresources=(_FINALIZE,),
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    ),
    _kind("v1", "Node", "nodes", namespaced=False, short=("no",), status=True),
    _kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", short=("pvc",), status=True),
    _kind(
        "v1", "Pod", "pods", short=("po",), categories=("all",), status=True, generation=True,
        subresources=_POD_SUBRESOURCES,
    ),
    _kind("v1", "Secret", "secrets"),
    _kind("v1", "ServiceAccount", "serviceaccounts", short=("sa",), subresources=(_TOKEN,)),
    _kind("v1", "Service", "services", short=("svc",), categories=("all",), status=True),
    _kind(
        "apps/v1", "Deployment", "deployments", short=("deploy",), categories=("all",), status=True,
        generation=True, subresources=(SCALE,),
    ),
    _kind(
        "apps/v1", "ReplicaSet", "replicasets", short=("rs",), categories=("all",), status=True, generation=True,
        subresources=(SCALE,),
    ),
    _kind("events.k8s.io/v1", "Event", "events", short=("ev",), storage="events"),
    _kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", short=("pdb",), status=True, generation=True),
    _kind("coordination.k8s.io/v1", "Lease", "leases"),
    _kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", short=("netpol",), generation=True),
    _kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", generation=True),
    _kind(_RBAC, "ClusterRole", "clusterroles", namespaced=False),
    _kind(_RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    _kind(_RBAC, "Role", "roles"),
    _kind(_RBAC, "RoleBinding", "rolebindings"),
    _kind(
        "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False,
        short=("crd", "crds"), categories=("api-extensions",), status=True, generation=True,
    ),
    _kind(_AUTHN, "SelfSubjectReview", "selfsubjectreviews", namespaced=False, verbs=_CREATE),
    _kind(_AUTHN, "TokenReview", "tokenreviews", namespaced=False, verbs=_CREATE),
    _kind(_AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=_CREATE),
    _kind(_AUTHZ, "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False, verbs=_CREATE),
    _kind(_AUTHZ, "SelfSubjectRulesReview", "selfsubjectrulesreviews", namespaced=False, verbs=_CREATE),
    _kind(_AUTHZ, "SubjectAccessReview", "subjectaccessreviews", namespaced=False, verbs=_CREATE),
)  # fmt: skip
