from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from fulcrum_local.kubelet.environment import ConfigError
from fulcrum_local.kubelet.volumes import live, materialise, mount_folders, references, translated, update, variable

Json = dict[str, Any]
OBJECTS: dict[tuple[str, str], Json] = {
    ("ConfigMap", "cm"): {"data": {"a": "1", "b": "2"}, "binaryData": {"c": base64.b64encode(b"\xff").decode()}},
    ("Secret", "s"): {"data": {"k": base64.b64encode(b"v").decode()}},
}


def make(tmp_path: Path, *volumes: Json) -> dict[str, str]:
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"volumes": list(volumes)}}
    return materialise(
        pod,
        tmp_path / "volumes",
        claims=tmp_path / "claims",
        lookup=lambda kind, name: OBJECTS.get((kind, name)),
        pod_ip="127.77.1.1",
        host_ip="127.77.0.1",
    )


def test_each_kind_is_a_private_folder_with_a_variable(tmp_path: Path) -> None:
    found = make(
        tmp_path,
        {"name": "empty-one", "emptyDir": {}},
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "some", "configMap": {"name": "cm", "items": [{"key": "a", "path": "deep/er"}]}},
        {"name": "both", "projected": {"sources": [
            {"secret": {"name": "s"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "models"}},
        {"name": "host", "hostPath": {"path": "/tmp"}},
    )  # fmt: skip
    assert variable("empty-one") == "FULCRUM_VOLUME_EMPTY_ONE"
    assert (tmp_path / "volumes" / "cm" / "c").read_bytes() == b"\xff"
    assert (Path(found["FULCRUM_VOLUME_SOME"]) / "deep" / "er").read_text() == "1"
    assert not (Path(found["FULCRUM_VOLUME_SOME"]) / "a").exists()
    both = Path(found["FULCRUM_VOLUME_BOTH"])
    assert (both / "k").read_text() == "v"
    assert (both / "name").read_text() == "p"
    assert (both / "k").stat().st_mode & 0o777 == 0o600
    assert both.stat().st_mode & 0o777 == 0o700
    assert found["FULCRUM_VOLUME_DATA"] == str(tmp_path / "claims" / "ns" / "models")
    assert found["FULCRUM_VOLUME_HOST"] == "/tmp"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, 'configmap "cm" has no key z'),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../a"}]}}, "no path inside a volume"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "/etc/a"}]}}, "no path inside a volume"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, volume: Json, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, {"name": "v", **volume})


def test_optional_may_be_missing(tmp_path: Path) -> None:
    make(tmp_path, {"name": "v", "secret": {"secretName": "none", "optional": True}})


def test_references_are_found_everywhere() -> None:
    pod = {
        "spec": {
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}]}}],
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "b"}}]}],
            "containers": [{"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}]}],
        }
    }
    assert references(pod) == {("Secret", "a"), ("ConfigMap", "b"), ("Secret", "c")}


def test_volumes_follow_their_objects(tmp_path: Path) -> None:
    volumes = [
        {"name": "keys", "secret": {"secretName": "s"}},
        {"name": "some", "configMap": {"name": "cm", "items": [{"key": "a", "path": "deep/er"}]}},
        {"name": "own", "emptyDir": {}},
    ]
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"volumes": volumes}}
    assert [volume["name"] for volume in live(pod)] == ["keys", "some"]
    make(tmp_path, *volumes)
    folder = tmp_path / "volumes"
    (folder / "own" / "file").write_text("mine")

    def follow(objects: dict[tuple[str, str], Json]) -> list[str]:
        return update(
            pod, folder, lookup=lambda kind, name: objects.get((kind, name)), pod_ip="127.77.1.1", host_ip="127.77.0.1"
        )

    def names(volume: str) -> set[str]:
        return {path.name for path in (folder / volume).iterdir()}

    assert follow(OBJECTS) == []
    encoded = base64.b64encode(b"new").decode()
    assert follow({**OBJECTS, ("Secret", "s"): {"data": {"k": encoded, "l": encoded}}}) == ["keys"]
    assert (names("keys"), (folder / "keys" / "k").read_text()) == ({"k", "l"}, "new")
    assert (folder / "keys" / "k").stat().st_mode & 0o777 == 0o600
    assert follow({**OBJECTS, ("Secret", "s"): {"data": {"l": encoded}}}) == ["keys"]
    assert names("keys") == {"l"}
    with pytest.raises(ConfigError, match='secret "s" not found'):
        follow({("ConfigMap", "cm"): OBJECTS["ConfigMap", "cm"]})
    assert names("keys") == {"l"}
    assert (folder / "own" / "file").read_text() == "mine"


FOLDERS = {"/etc/fulcrum/api-keys": "/v/keys", "/data": "/v/data", "/data/deep": "/v/deep"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/v/data"),
        ("--dir=/data/x", "--dir=/v/data/x"),
        ('{"keys":"/etc/fulcrum/api-keys","n":1}', '{"keys":"/v/keys","n":1}'),
        ("/data:/data/deep/y", "/v/data:/v/deep/y"),
        ("cat /data/a /data2/b /my/data", "cat /v/data/a /data2/b /my/data"),
        ("/database ../data data /data.d", "/database ../data data /data.d"),
    ],
)
def test_mount_paths_are_translated(text: str, expected: str) -> None:
    assert translated(text, FOLDERS) == expected


def test_a_mount_path_that_the_machine_has_is_its_own() -> None:
    mounts = [
        {"name": "a", "mountPath": "/tmp"},
        {"name": "b", "mountPath": "/no/such/path/", "subPath": "in"},
        {"name": "unknown", "mountPath": "/none"},
    ]
    folders = mount_folders({"volumeMounts": mounts}, {variable("a"): "/v/a", variable("b"): "/v/b"})
    assert folders == {"/no/such/path": "/v/b/in"}
