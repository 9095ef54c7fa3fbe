"""Large clusters are played as scale models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.rehearsal.worlds import make_seen

from fulcrum.api.names import Role
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.rehearsal.scale import Scale, scale_of, thinned
from fulcrum.rehearsal.tuning import TUNING

counts = st.integers(0, 500)


def layout(prefill: int, decode: int, mixed: int = 0, pool: str = "p") -> Layout:
    return Layout.of(prefill={pool: prefill}, decode={pool: decode}, mixed={pool: mixed})


def made(standing: Layout, sampling_rate: float = 1.0) -> Scale:
    found = scale_of(standing, sampling_rate)
    assert found is not None
    return found


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One or two pools."""
    pools = ["p", "q"][: draw(st.integers(1, 2))]
    return Layout.of_roles({role: {pool: draw(counts) for pool in pools} for role in ROLES})


def test_a_small_cluster_is_played_as_it_is() -> None:
    scale = made(layout(5, TUNING.most_of_role))
    assert (scale.played, scale.share) == (scale.real, 1.0)
    assert scale.unscaled(layout(7, 14)) == layout(7, 14)


@pytest.mark.parametrize(
    ("standing", "played"),
    [(layout(40, 60), layout(11, 16)), (layout(400, 600), layout(11, 16)), (layout(0, 0, 1000), layout(0, 0, 16))],
)
def test_a_large_one_is_played_smaller(standing: Layout, played: Layout) -> None:
    scale = made(standing)
    assert scale.played == played
    assert scale.share == played.total / standing.total


def test_one_whose_smaller_role_has_too_few_workers_has_no_model() -> None:
    assert scale_of(layout(1, 500), 1.0) is None
    assert scale_of(Layout(), 1.0) is None
    assert scale_of(layout(1, 1), 0.5) is None


def test_a_sample_of_the_requests_needs_a_model_of_its_size() -> None:
    assert made(layout(4, 4), 0.5).played == layout(2, 2)
    scale = made(layout(40, 60), 0.125)
    assert scale.share <= 0.125
    assert scale.played == layout(5, 7)


@settings(max_examples=200)
@given(standing=layouts(), rate=st.sampled_from([1.0, 0.5, 0.25, 1 / 64]))
def test_a_model_is_like_the_real_one_and_what_stands_stays(standing: Layout, rate: float) -> None:
    scale = scale_of(standing, rate)
    assume(scale is not None)
    assert scale is not None
    assert 0 < scale.share <= rate
    assert scale.played.total <= max(4 * TUNING.most_of_role, standing.total if scale.share == 1 else 0)
    for role in ROLES:
        for pool, few in scale.played.of_role(role):
            assert few / scale.played.total == pytest.approx(
                standing.in_pool(pool)[role] / standing.total, rel=TUNING.stretch_change + 1e-9
            )
    assert scale.unscaled(scale.played) == standing


@settings(max_examples=200)
@given(prefill=st.integers(8, 400), decode=st.integers(8, 400), data=st.data())
def test_what_is_chosen_in_the_model_is_of_all_real_workers(prefill: int, decode: int, data: st.DataObject) -> None:
    standing = layout(prefill, decode)
    scale = scale_of(standing, 1.0)
    assume(scale is not None)
    assert scale is not None
    total = scale.played.total
    of_prefill = data.draw(st.integers(1, total - 1))
    chosen = scale.unscaled(layout(of_prefill, total - of_prefill))
    assert (chosen.total, chosen.complete, chosen.mixed) == (standing.total, True, ())
    moved = (of_prefill - scale.played.count(Role.PREFILL)) / scale.share
    assert chosen.count(Role.PREFILL) == pytest.approx(min(max(prefill + moved, 1), standing.total - 1), abs=1.0)
    assert scale.unscaled(layout(0, 0, total)) == layout(0, 0, standing.total)
    for pool in scale.unscaled(layout(0, total)).pools:
        assert pool == "p"


def test_a_share_of_the_requests_stays() -> None:
    seen = make_seen(np.linspace(0.0, 100.0, 8000))
    assert len(thinned(seen, 0.25)) == pytest.approx(2000, rel=0.05)
    assert thinned(seen, 1.0) is seen
    np.testing.assert_array_equal(thinned(seen, 0.5).arrival_seconds, thinned(seen, 0.5).arrival_seconds)


def test_what_has_a_prefix_in_common_stays_together() -> None:
    """Each of 1,000 conversations has eight turns, behind one system prompt for all."""
    conversations = np.repeat(np.arange(1000), 8)
    ids = tuple((0, 10 + int(one), 10_000 + turn) for turn, one in enumerate(conversations))
    seen = make_seen(np.linspace(0.0, 100.0, len(ids)), prefix_ids=ids)
    left = thinned(seen, 0.25)
    assert left.load.prefix_ids is not None
    turns = np.unique([prompt[1] for prompt in left.load.prefix_ids], return_counts=True)[1]
    assert set(turns.tolist()) == {8}
    assert len(left) == pytest.approx(2000, rel=0.15)
