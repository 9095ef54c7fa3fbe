"""The published definitions cover what the server serves."""

from __future__ import annotations

import pytest

from fulcrum_local.apiserver.builtin_kinds import BUILTIN_KINDS
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.model_types import Model, fields_of, model_of


@pytest.mark.parametrize("kind", BUILTIN_KINDS, ids=lambda kind: kind.storage)
def test_every_kind_has_its_model_down_to_the_last_field(kind: Kind) -> None:
    model = model_of(kind.group, kind.version, kind.kind)
    assert model is not None
    seen: set[Model] = set()
    todo = [model]
    while todo:
        model = todo.pop()
        if model not in seen:
            seen.add(model)
            types = [field.type for field in fields_of(model).values()]
            todo += [each.model or each.item.model for each in types if each.model or (each.item and each.item.model)]  # type: ignore[misc]
    assert all(each.description for each in seen if not each.kind.endswith("List"))


def test_shapes_are_those_of_the_go_types() -> None:
    def shape(kind: str, field: str) -> str:
        return fields_of(Model(name=f"io.k8s.api.core.v1.{kind}"))[field].type.shape

    assert shape("ServicePort", "targetPort") == "int_or_string"
    assert shape("PodCondition", "lastTransitionTime") == "time"
    assert shape("Secret", "data") == "map"
    limits = fields_of(Model(name="io.k8s.api.core.v1.ResourceRequirements"))["limits"].type
    assert limits.item is not None
    assert (limits.shape, limits.item.shape) == ("map", "quantity")
