"""Server-side apply: ownership, conflicts, removal, and no write when nothing changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fulcrum_local.objects import field_set
from fulcrum_local.objects.list_types import ListTypes
from fulcrum_local.objects.patch import PatchError
from fulcrum_local.objects.server_side_apply import ApplyConflict, apply, record_update

DEPLOYMENT = ListTypes.for_builtin("Deployment")
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
EARLY, LATE = "2026-11-21T03:00:00Z", "2026-11-21T04:00:00Z"


def deployment(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", **metadata}, "spec": spec}


def applied(
    live: dict[str, Any] | None, obj: dict[str, Any], manager: str = "me", *, force: bool = False, now: str = EARLY
) -> dict[str, Any]:
    return apply(live, obj, manager=manager, force=force, lists=DEPLOYMENT, now=now)


def updated(
    old: dict[str, Any] | None, new: dict[str, Any], manager: str = "kubectl", now: str = EARLY
) -> dict[str, Any]:
    return record_update(old, new, manager=manager, lists=DEPLOYMENT, now=now)


def owned_by(obj: dict[str, Any], manager: str) -> dict[str, Any]:
    (entry,) = (each for each in obj["metadata"]["managedFields"] if each["manager"] == manager)
    fields: dict[str, Any] = entry["fieldsV1"]
    return fields


def with_containers(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return deployment({**spec, "template": {"spec": {"containers": list(containers)}}})


def containers(obj: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = obj["spec"]["template"]["spec"]["containers"]
    return found


def test_the_entry_has_the_format_of_kubernetes() -> None:
    obj = with_containers({"name": "a", "image": "i", "args": ["x"], "ports": [{"containerPort": 80}]}, replicas=1)
    obj["metadata"]["labels"] = {"app": "x"}
    obj["metadata"]["finalizers"] = ["f/x"]
    (entry,) = applied(None, obj)["metadata"]["managedFields"]
    port = {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}
    container = {".": {}, "f:name": {}, "f:image": {}, "f:args": {}, "f:ports": port}
    assert entry == {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": "apps/v1",
        "time": EARLY,
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {"f:app": {}}, "f:finalizers": {'v:"f/x"': {}}},
            "f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {'k:{"name":"a"}': container}}}},
        },
    }


def test_applying_the_same_again_is_no_change_at_all() -> None:
    obj = with_containers({"name": "a", "image": "i"}, replicas=1)
    live = applied(None, obj)
    assert applied(live, obj, now=LATE) == live


def test_server_defaults_stay_and_belong_to_nobody() -> None:
    live = applied(None, with_containers({"name": "a"}))
    live["spec"]["progressDeadlineSeconds"] = 600
    assert applied(live, with_containers({"name": "a"}), now=LATE) == live


def test_what_is_no_longer_applied_goes() -> None:
    live = applied(None, with_containers({"name": "a", "image": "i"}, {"name": "b"}, replicas=1, paused=True))
    containers(live)[1]["terminationMessagePath"] = "/dev/termination-log"
    after = applied(live, with_containers({"name": "a"}, replicas=1), now=LATE)
    assert after["spec"] == with_containers({"name": "a"}, replicas=1)["spec"]
    assert after["metadata"]["managedFields"][0]["time"] == LATE


def test_labels_that_are_no_longer_applied_leave_the_name() -> None:
    live = applied(None, deployment({"replicas": 1}, labels={"a": "1"}))
    live["metadata"]["uid"] = "u"
    after = applied(live, deployment({"replicas": 1}))
    assert after["metadata"].keys() == {"name", "uid", "managedFields"}


def test_a_shared_field_stays_until_its_last_owner_lets_go() -> None:
    one = deployment({"replicas": 3, "paused": True})
    live = applied(applied(None, one, "a"), deployment({"replicas": 3}), "b")
    assert owned_by(live, "b") == {"f:spec": {"f:replicas": {}}}
    live = applied(live, deployment({"paused": True}), "a")
    assert live["spec"] == {"replicas": 3, "paused": True}
    live = applied(live, deployment({}), "b")
    assert live["spec"] == {"paused": True}


def test_another_value_of_an_owned_field_is_a_conflict() -> None:
    live = updated(None, deployment({"replicas": 3}), "kubectl-client-side-apply")
    with pytest.raises(ApplyConflict) as raised:
        applied(live, deployment({"replicas": 4}))
    assert str(raised.value) == (
        'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using apps/v1: .spec.replicas'
    )
    (cause,) = raised.value.causes
    assert (cause.field, cause.reason) == (".spec.replicas", "FieldManagerConflict")
    assert cause.message == 'conflict with "kubectl-client-side-apply" using apps/v1'


def test_several_conflicts_are_listed_by_manager() -> None:
    live = applied(None, with_containers({"name": "a", "image": "1"}), "a")
    live = applied(live, deployment({"replicas": 1, "paused": True}), "b")
    with pytest.raises(ApplyConflict) as raised:
        applied(live, with_containers({"name": "a", "image": "2"}, replicas=2, paused=False), "c")
    assert str(raised.value) == (
        'Apply failed with 3 conflicts: conflicts with "a":\n- .spec.template.spec.containers[name="a"].image\n'
        'conflicts with "b":\n- .spec.paused\n- .spec.replicas'
    )


def test_force_takes_the_field() -> None:
    live = applied(
        applied(None, deployment({"replicas": 3, "paused": True}), "a"), deployment({"replicas": 4}), "b", force=True
    )
    assert live["spec"]["replicas"] == 4
    assert owned_by(live, "a") == {"f:spec": {"f:paused": {}}}


def test_scaling_takes_replicas_from_the_applier_and_makes_the_next_apply_conflict() -> None:
    live = applied(None, deployment({"replicas": 1}))
    scaled = updated(live, {**live, "spec": {"replicas": 5}}, "scaler")
    assert [each["manager"] for each in scaled["metadata"]["managedFields"]] == ["scaler"]
    with pytest.raises(ApplyConflict):
        applied(scaled, deployment({"replicas": 1}))
    assert applied(scaled, deployment({}))["spec"] == {"replicas": 5}


def test_an_update_that_changes_nothing_records_nothing() -> None:
    live = updated(None, deployment({"replicas": 1}))
    assert updated(live, copy.deepcopy(live), "someone", now=LATE) == live
    without = copy.deepcopy(live)
    del without["metadata"]["managedFields"]
    assert updated(live, without, "kubectl", now=LATE) == live


def test_an_update_owns_what_it_changed_and_forgets_what_it_removed() -> None:
    live = updated(None, deployment({"replicas": 1, "paused": True}, labels={"a": "1"}), "a")
    assert owned_by(live, "a")["f:metadata"] == {"f:labels": {".": {}, "f:a": {}}}
    live = updated(live, deployment({"replicas": 2}, labels={"a": "1"}), "b")
    assert owned_by(live, "a") == {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {}}
    assert owned_by(live, "b") == {"f:spec": {"f:replicas": {}}}


def test_a_client_may_forget_the_managers() -> None:
    live = updated(None, deployment({"replicas": 1}))
    for forgotten in ([], [{}]):
        new = copy.deepcopy(live)
        new["metadata"]["managedFields"] = forgotten
        assert "managedFields" not in updated(live, new)["metadata"]
    broken = copy.deepcopy(live)
    broken["metadata"]["managedFields"] = [{"operation": "?"}]
    assert updated(live, broken)["metadata"]["managedFields"] == live["metadata"]["managedFields"]


def test_an_object_without_managers_belongs_to_before_first_apply() -> None:
    with pytest.raises(ApplyConflict, match=r'conflict with "before-first-apply" using apps/v1: \.spec\.replicas'):
        applied(deployment({"replicas": 1}), deployment({"replicas": 2}))


def test_the_status_subresource_has_an_entry_of_its_own() -> None:
    live = applied(None, deployment({"replicas": 1}))
    status = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "status": {"replicas": 1}}
    live = apply(live, status, manager="me", force=False, lists=DEPLOYMENT, now=LATE, subresource="status")
    assert [each.get("subresource") for each in live["metadata"]["managedFields"]] == [None, "status"]
    assert live["spec"] == {"replicas": 1}
    with pytest.raises(ApplyConflict, match=r'conflict with "me" with subresource "status": \.status\.replicas'):
        applied(live, {**status, "status": {"replicas": 2}}, "other")


def test_atomic_lists_and_maps_are_replaced_whole() -> None:
    selector = {"matchLabels": {"a": "1"}}
    live = applied(None, with_containers({"name": "a", "args": ["1", "2"]}, selector=selector), "a")
    assert owned_by(live, "a")["f:spec"]["f:selector"] == {}
    with pytest.raises(ApplyConflict, match=r"\.spec\.selector$"):
        applied(live, deployment({"selector": {"matchLabels": {"b": "1"}}}), "b")
    live = applied(live, with_containers({"name": "a", "args": ["3"]}, selector=selector), "a")
    assert containers(live)[0]["args"] == ["3"]


def test_null_is_a_value() -> None:
    live = applied(None, deployment({"paused": None, "replicas": 1}))
    assert live["spec"] == {"paused": None, "replicas": 1}
    assert applied(live, deployment({"paused": None, "replicas": 1}), now=LATE) == live


def test_an_item_that_is_there_twice_is_refused() -> None:
    with pytest.raises(PatchError, match=r'\.spec\.template\.spec\.containers: duplicate entries for key \[name="a"\]'):
        applied(None, with_containers({"name": "a"}, {"name": "a"}))


def test_items_of_others_keep_their_place() -> None:
    live = applied(None, with_containers({"name": "a"}, {"name": "b"}), "a")
    live = applied(live, with_containers({"name": "side"}), "b")
    live = applied(live, with_containers({"name": "b"}, {"name": "c"}, {"name": "a"}), "a")
    assert [each["name"] for each in containers(live)] == ["b", "side", "c", "a"]


CUSTOM = ListTypes.for_schema(
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "atomic": {"type": "array", "items": {"type": "string"}},
                    "items": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["k"],
                        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
                    },
                },
            }
        },
    }
)
LETTERS = st.sampled_from("xyz")
SMALL = st.integers(0, 2)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "a": SMALL,
        "b": st.dictionaries(LETTERS, SMALL),
        "set": st.lists(LETTERS, unique=True),
        "atomic": st.lists(LETTERS),
        "items": st.lists(
            st.fixed_dictionaries({"k": LETTERS}, optional={"v": SMALL}), unique_by=lambda item: item["k"]
        ),
    },
)


def custom(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "e/v1", "kind": "E", "metadata": {"name": "x"}, "spec": spec}


def custom_apply(live: dict[str, Any] | None, spec: dict[str, Any], manager: str, now: str = EARLY) -> dict[str, Any]:
    return apply(live, custom(spec), manager=manager, force=True, lists=CUSTOM, now=now)


@UNHURRIED
@given(st.lists(st.tuples(SPECS, st.sampled_from("pq")), min_size=1, max_size=4))
def test_apply_is_idempotent_and_changes_no_argument(steps: list[tuple[dict[str, Any], str]]) -> None:
    live = None
    for spec, manager in steps:
        before = copy.deepcopy((live, spec))
        live_after = custom_apply(live, spec, manager)
        assert (live, spec) == before
        live = live_after
        assert custom_apply(live, spec, manager, now=LATE) == live


@UNHURRIED
@given(SPECS, SPECS)
def test_a_single_manager_gets_exactly_what_it_applies(first: dict[str, Any], second: dict[str, Any]) -> None:
    live = custom_apply(custom_apply(None, first, "p"), second, "p")
    expected = second or None  # nobody owns a spec of which nothing is left
    assert (live.get("spec") or None) == expected


@UNHURRIED
@given(SPECS, SPECS)
def test_managers_of_disjoint_fields_commute(one: dict[str, Any], other: dict[str, Any]) -> None:
    other = {name: value for name, value in other.items() if name not in one}
    forth = custom_apply(custom_apply(None, one, "p"), other, "q")
    back = custom_apply(custom_apply(None, other, "q"), one, "p")
    assert forth.get("spec", {}) == back.get("spec", {})
    ownership = [sorted((each["manager"], str(each["fieldsV1"])) for each in obj["metadata"].get("managedFields", ()))
                 for obj in (forth, back)]  # fmt: skip
    assert ownership[0] == ownership[1]


@UNHURRIED
@given(SPECS, SPECS)
def test_every_field_has_an_owner_that_a_second_update_does_not_change(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    live = record_update(None, custom(old), manager="p", lists=CUSTOM, now=EARLY)
    live = record_update(live, custom(new), manager="q", lists=CUSTOM, now=EARLY)
    owned = frozenset[field_set.Path]().union(
        *(field_set.from_v1(each["fieldsV1"]) for each in live["metadata"].get("managedFields", ()))
    )
    claimed = {path for path in field_set.fields_of(custom(new), CUSTOM) if path[0] == "f:spec"}
    assert claimed <= owned
    assert record_update(live, copy.deepcopy(live), manager="r", lists=CUSTOM, now=LATE) == live


@UNHURRIED
@given(SPECS)
def test_fields_v1_reads_back(spec: dict[str, Any]) -> None:
    fields = field_set.changes({}, custom(spec), CUSTOM).added
    assert field_set.from_v1(field_set.to_v1(fields)) == fields
