"""Who is let in, and what RBAC lets them do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.api.server.cluster import Http, Json, client_of, config_map, pod, wait_for

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def _ok(response: requests.Response, code: int = 200) -> Json:
    assert response.status_code == code, response.text
    obj: Json = response.json()
    return obj


@pytest.fixture
def account(api: Http, namespace: str) -> str:
    """A ServiceAccount `one`; its user name."""
    _ok(api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", json={"metadata": {"name": "one"}}), 201)
    return f"system:serviceaccount:{namespace}:one"


def _token(api: Http, namespace: str, spec: Json | None = None) -> Json:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/one/token"
    status: Json = _ok(api.post(path, json={"spec": spec or {}}), 201)["status"]
    return status


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def bare(kubeconfig: Path) -> Iterator[Http]:
    """The same server without credentials."""
    with client_of(kubeconfig, credentials=False) as client:
        yield client


def _grant(api: Http, namespace: str, *rules: Json) -> None:
    _ok(api.post(f"{RBAC}/namespaces/{namespace}/roles", json={"metadata": {"name": "one"}, "rules": list(rules)}), 201)
    binding = {
        "metadata": {"name": "one"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"},
        "subjects": [{"kind": "ServiceAccount", "name": "one", "namespace": namespace}],
    }
    _ok(api.post(f"{RBAC}/namespaces/{namespace}/rolebindings", json=binding), 201)


def _rule(group: str, resource: str, *verbs: str, **more: list[str]) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}


def test_a_wrong_token_is_unauthorized(bare: Http) -> None:
    for token in ("wrong", "a.b.c"):
        response = bare.get("/api/v1/namespaces", headers={"Authorization": f"Bearer {token}"})
        assert response.status_code == 401, response.text
        status = response.json()
        assert (status["kind"], status["reason"], status["message"]) == ("Status", "Unauthorized", "Unauthorized")


def test_without_credentials_only_health_is_shown(bare: Http) -> None:
    assert bare.get("/readyz").text == "ok"
    response = bare.get("/api/v1/namespaces/default/pods")
    assert response.status_code in (401, 403)
    if response.status_code == 403:
        assert response.json()["message"] == (
            'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" '
            'in the namespace "default"'
        )


def test_a_service_account_may_do_what_it_was_granted(api: Http, bare: Http, namespace: str, account: str) -> None:
    token = _token(api, namespace)
    assert token["expirationTimestamp"].endswith("Z")
    headers = _bearer(token["token"])
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    response = bare.get(path, headers=headers)
    assert response.status_code == 403
    status = response.json()
    assert status["reason"] == "Forbidden"
    assert status["message"] == (
        f'configmaps is forbidden: User "{account}" cannot list resource "configmaps" in API group "" '
        f'in the namespace "{namespace}"'
    )
    _grant(
        api, namespace, _rule("", "configmaps", "list", "create"), _rule("", "configmaps", "get", resourceNames=["a"])
    )
    wait_for(lambda: bare.get(path, headers=headers).status_code == 200, "allowed to list")
    _ok(bare.post(path, headers=headers, json=config_map("a")), 201)
    _ok(bare.post(path, headers=headers, json=config_map("b")), 201)
    assert bare.get(f"{path}/a", headers=headers).status_code == 200
    assert bare.get(f"{path}/b", headers=headers).status_code == 403
    assert bare.delete(f"{path}/a", headers=headers).status_code == 403
    assert bare.get("/api/v1/namespaces/default/configmaps", headers=headers).status_code == 403
    assert bare.get("/api/v1/configmaps", headers=headers).status_code == 403


def test_a_list_of_one_name_takes_the_right_to_that_name(api: Http, bare: Http, namespace: str, account: str) -> None:
    headers = _bearer(_token(api, namespace)["token"])
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("a", "b"):
        _ok(api.post(path, json=config_map(name)), 201)
    _grant(api, namespace, _rule("", "configmaps", "list", resourceNames=["a"]))

    def listed(fields: str) -> int:
        code: int = bare.get(path, headers=headers, params={"fieldSelector": fields} if fields else None).status_code
        return code

    wait_for(lambda: listed("metadata.name=a") == 200, "allowed to list one")
    assert listed("metadata.name=b") == 403
    assert listed("metadata.name!=b") == 403
    assert listed("") == 403


def test_subresources_are_granted_apart(api: Http, bare: Http, namespace: str, account: str) -> None:
    headers = {**_bearer(_token(api, namespace)["token"]), "Content-Type": "application/merge-patch+json"}
    _grant(api, namespace, _rule("", "pods", "patch"))
    path = f"/api/v1/namespaces/{namespace}/pods"
    _ok(api.post(path, json=pod("one", nodeName="none")), 201)
    labels = {"metadata": {"labels": {"a": "b"}}}
    wait_for(lambda: bare.patch(f"{path}/one", headers=headers, json=labels).status_code == 200, "allowed to patch")
    response = bare.patch(f"{path}/one/status", headers=headers, json={"status": {"message": "x"}})
    assert response.status_code == 403
    assert 'cannot patch resource "pods/status" in API group ""' in response.json()["message"]


def test_nobody_grants_more_than_they_have(api: Http, bare: Http, namespace: str, account: str) -> None:
    headers = _bearer(_token(api, namespace)["token"])
    rbac = "rbac.authorization.k8s.io"
    _grant(
        api, namespace, _rule(rbac, "roles", "create"), _rule(rbac, "rolebindings", "create"), _rule("", "pods", "get")
    )
    path = f"{RBAC}/namespaces/{namespace}"
    body: Json = {"metadata": {"name": "more"}, "rules": [_rule("", "pods", "get", "delete")]}

    def refused() -> Json | None:
        response = bare.post(f"{path}/roles", headers=headers, json=body)
        assert response.status_code == 403
        status: Json = response.json()
        return status if "attempting to grant" in status["message"] else None

    message = wait_for(refused, "refused as escalation")["message"]
    assert message.startswith(f'roles.{rbac} "more" is forbidden: user "{account}" (groups=[')
    assert 'is attempting to grant RBAC permissions not currently held:\n{APIGroups:[""]' in message
    assert 'Resources:["pods"]' in message
    assert 'Verbs:["delete"]}' in message
    same = {"metadata": {"name": "same"}, "rules": [_rule("", "pods", "get")]}
    _ok(bare.post(f"{path}/roles", headers=headers, json=same), 201)
    binding: Json = {
        "metadata": {"name": "more"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": rbac, "name": "me"}],
    }
    response = bare.post(f"{path}/rolebindings", headers=headers, json=binding)
    assert response.status_code == 403
    assert "attempting to grant RBAC permissions not currently held" in response.json()["message"]
    binding["roleRef"] = {"apiGroup": rbac, "kind": "Role", "name": "same"}
    _ok(bare.post(f"{path}/rolebindings", headers=headers, json=binding), 201)


def test_the_role_of_a_binding_stays(api: Http, namespace: str, account: str) -> None:
    _grant(api, namespace, _rule("", "pods", "get"))
    path = f"{RBAC}/namespaces/{namespace}/rolebindings/one"
    binding = _ok(api.get(path))
    binding["roleRef"]["name"] = "other"
    response = api.put(path, json=binding)
    assert response.status_code == 422
    assert "cannot change roleRef" in response.json()["message"]


def test_a_token_dies_with_its_account(api: Http, bare: Http, namespace: str, account: str) -> None:
    headers = _bearer(_token(api, namespace)["token"])
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    info = _ok(bare.post(path, headers=headers, json={}), 201)["status"]["userInfo"]
    assert info["username"] == account
    assert {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"} <= set(
        info["groups"]
    )
    _ok(api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/one"))
    wait_for(lambda: bare.post(path, headers=headers, json={}).status_code == 401, "token refused")


def test_a_token_can_be_bound_to_a_pod(api: Http, bare: Http, namespace: str, account: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    bound = _ok(api.post(pods, json=pod("one", serviceAccountName="one", nodeName="none")), 201)
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "one", "uid": bound["metadata"]["uid"]}
    token = _token(api, namespace, {"boundObjectRef": reference, "expirationSeconds": 3600})["token"]
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    extra = _ok(bare.post(path, headers=_bearer(token), json={}), 201)["status"]["userInfo"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["one"]
    review = {"spec": {"token": token}}
    status = _ok(api.post("/apis/authentication.k8s.io/v1/tokenreviews", json=review), 201)["status"]
    assert (status["authenticated"], status["user"]["username"]) == (True, account)
    _ok(api.delete(f"{pods}/one?gracePeriodSeconds=0"))
    wait_for(lambda: bare.post(path, headers=_bearer(token), json={}).status_code == 401, "token refused")
    status = _ok(api.post("/apis/authentication.k8s.io/v1/tokenreviews", json=review), 201)["status"]
    assert not status.get("authenticated")


def test_a_short_token_is_refused(api: Http, namespace: str, account: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/one/token"
    response = api.post(path, json={"spec": {"expirationSeconds": 10}})
    assert response.status_code == 422
    assert "may not specify a duration less than 10 minutes" in response.json()["message"]


def test_impersonation(api: Http, bare: Http, namespace: str, account: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert api.get(path, headers={"Impersonate-User": account}).status_code == 403
    headers = {**_bearer(_token(api, namespace)["token"]), "Impersonate-User": "somebody"}
    response = bare.get(path, headers=headers)
    assert response.status_code == 403
    why = f'impersonate-on:user-info:list resource "configmaps" in API group "" in the namespace "{namespace}"'
    assert response.json()["message"].startswith('configmaps is forbidden: User "system:serviceaccount:')
    assert response.json()["message"].endswith(f"cannot {why}")


def test_a_pod_needs_its_account(api: Http, namespace: str) -> None:
    response = api.post(f"/api/v1/namespaces/{namespace}/pods", json=pod("one", serviceAccountName="none"))
    assert response.status_code == 403
    assert (
        f'error looking up service account {namespace}/none: serviceaccount "none" not found'
        in response.text.replace("\\", "")
    )


def test_view_and_edit_are_aggregated(api: Http) -> None:
    def allowed(group: str, verb: str, resource: str) -> bool:
        attributes = {"verb": verb, "resource": resource, "namespace": "default"}
        spec = {"user": "u", "groups": [group], "resourceAttributes": attributes}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(_ok(api.post(path, json={"spec": spec}), 201)["status"]["allowed"])

    for role in ("view", "edit"):
        binding = {
            "metadata": {"name": f"test-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": f"test-{role}"}],
        }
        api.post(f"{RBAC}/clusterrolebindings", json=binding)
    try:
        wait_for(lambda: allowed("test-view", "list", "pods"), "view")
        wait_for(lambda: allowed("test-edit", "list", "pods"), "edit reads")
        assert allowed("test-edit", "delete", "pods")
        assert not allowed("test-view", "delete", "pods")
        assert not allowed("test-view", "get", "secrets")
    finally:
        for role in ("view", "edit"):
            api.delete(f"{RBAC}/clusterrolebindings/test-{role}")
