"""The corpus against the generated schema, without a server (the server's own test sends the same files)."""

from __future__ import annotations

from functools import cache

import pytest
from tests.api.corpus_files import Accepted, Rejected, accepted, rejected, value_at

from fulcrum.api.crd import root_schema
from fulcrum.api.objects import load_inference_cluster, to_dict
from fulcrum.api.schema.structural import StructuralSchema


@cache
def _schema() -> StructuralSchema:
    return StructuralSchema(root_schema())


def test_there_is_enough_of_it() -> None:
    assert len(accepted()) + len(rejected()) >= 60


@pytest.mark.parametrize("case", accepted(), ids=lambda case: case.name)
def test_accepted_with_defaults(case: Accepted) -> None:
    assert _schema().unknown_fields(case.document) == []
    defaulted = _schema().default(case.document)
    assert [str(error) for error in _schema().validate(defaulted)] == []
    for pointer, expected in case.defaults.items():
        assert value_at(defaulted, pointer) == expected


@pytest.mark.parametrize("case", accepted(), ids=lambda case: case.name)
def test_types_and_schema_read_it_alike(case: Accepted) -> None:
    """What the controller sees does not depend on who filled in the defaults."""
    defaulted = _schema().default(case.document)
    cluster = load_inference_cluster(defaulted)
    assert load_inference_cluster(case.document) == cluster
    written = to_dict(cluster)
    assert _schema().validate(written) == []
    assert load_inference_cluster(written) == cluster


@pytest.mark.parametrize("case", rejected(), ids=lambda case: case.name)
def test_refused_with_its_message(case: Rejected) -> None:
    unknown = [f'unknown field "{path}"' for path in _schema().unknown_fields(case.document)]
    errors = [str(error) for error in _schema().validate(_schema().default(case.document))]
    assert any(case.message in message for message in [*unknown, *errors]), [*unknown, *errors]
