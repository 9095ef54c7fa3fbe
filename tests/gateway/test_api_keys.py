"""API keys: who gets in, as which class, how much, and what happens when the Secret changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Engine, MakeSite, eventually

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, ClassMatch, QosClass
from fulcrum.gateway.api_keys import KeyRing
from fulcrum.gateway.config import read_settings
from fulcrum.gateway.errors import RequestError

BODY = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 3}
CLASSES = (
    QosClass(name="gold", priority=9, match=ClassMatch(header="x-tier", value="gold")),
    QosClass(name="silver", priority=8, match=ClassMatch(header="x-tier", value="silver")),
    QosClass(name="rest", priority=1),
    QosClass(name="batch", priority=0, match=ClassMatch(header="x-tier", value="batch")),
)


def write(folder: Path, **keys: str | dict[str, Any]) -> Path:
    """Keys as a kubelet brings them: each one whole, or not there yet."""
    for name, value in keys.items():
        new = folder / f".{name}"
        new.write_text(value if isinstance(value, str) else json.dumps(value))
        new.rename(folder / name)
    return folder


@pytest.mark.parametrize(
    ("authorization", "name"),
    [
        ("Bearer secret-one", "one"),
        ("bearer  secret-one ", "one"),
        ("Bearer secret-two", "two"),
        ("Bearer secret-tw", None),
        ("Bearer ", None),
        ("Bearer", None),
        ("", None),
        (None, None),
        ("Basic secret-one", None),
        ("secret-one", None),
        ("Bearer secret-one, Bearer secret-one", None),
        ("Bearer short", None),
        ("Bearer ..data-is-no-key", None),
        ("Bearer s\u00e9cret-\udcff", None),
    ],
)
def test_who_gets_in(tmp_path: Path, authorization: str | None, name: str | None) -> None:
    write(tmp_path, one="secret-one\n", two={"key": "secret-two"}, three="short", **{"..data": "..data-is-no-key"})
    ring = KeyRing(tmp_path)
    if name is not None:
        assert ring.find(authorization).name == name
        return
    with pytest.raises(RequestError) as refused:
        ring.find(authorization)
    assert refused.value.status == 401
    assert b"www-authenticate: Bearer" in refused.value.headers()


@pytest.mark.parametrize(
    "text", ['{"key": 1}', '{"key": "secret-one", "clas": "x"}', "{", '{"key": "secret-one", "tokensPerMinute": 0}']
)
def test_what_cannot_be_read_lets_nobody_in_and_is_not_logged(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert KeyRing(write(tmp_path, one=text)).keys == ()
    assert "name=one" in caplog.text
    assert "secret-one" not in caplog.text


def test_a_file_that_is_nested_deep_takes_no_other_key_along(tmp_path: Path) -> None:
    ring = KeyRing(write(tmp_path, deep='{"key":' + "[" * 5000, one="secret-one"))
    assert [key.name for key in ring.keys] == ["one"]


def test_keys_follow_the_files_and_outlive_their_absence(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    ring = KeyRing(folder)
    assert ring.keys == ()
    folder.mkdir()
    write(folder, one={"key": "secret-one", "requestsPerMinute": 1}, two="secret-two")
    ring.refresh()
    ring.find("Bearer secret-one").charge(1, 0.0)
    write(folder, two="secret-new")
    ring.refresh()
    assert ring.find("Bearer secret-new").name == "two"
    with pytest.raises(RequestError):
        ring.find("Bearer secret-two")
    with pytest.raises(RequestError):  # what it has used is not forgotten
        ring.find("Bearer secret-one").charge(1, 0.0)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    ring.refresh()
    assert len(ring.keys) == 2
    folder.mkdir()
    ring.refresh()
    assert ring.keys == ()


@pytest.mark.parametrize(
    ("limits", "tokens", "let_in", "wait"),
    [
        ({"requestsPerMinute": 3}, 1.0, 3, 20.0),
        ({"requestsPerMinute": 0.5}, 1.0, 1, 120.0),
        ({"tokensPerMinute": 60}, 20.0, 3, 20.0),
        ({"tokensPerMinute": 60}, 100.0, 1, 60.0),
        ({"requestsPerMinute": 2, "tokensPerMinute": 600}, 250.0, 2, 30.0),
    ],
)
def test_limits(tmp_path: Path, limits: dict[str, float], tokens: float, let_in: int, wait: float) -> None:
    key = KeyRing(write(tmp_path, one={"key": "secret-one", **limits})).keys[0]
    for _ in range(let_in):
        key.charge(tokens, 1.0)
    with pytest.raises(RequestError) as refused:
        key.charge(tokens, 1.0)
    assert (refused.value.status, refused.value.reason) == (429, "RateLimited")
    waited = refused.value.retry_after_seconds
    assert waited is not None
    assert waited >= wait - 1e-6
    key.charge(tokens, 1.0 + waited + 1e-6)


def test_gateways_share_a_limit_and_estimates_are_corrected(tmp_path: Path) -> None:
    ring = KeyRing(write(tmp_path, one={"key": "secret-one", "tokensPerMinute": 200}))
    ring.share(2, 0.0)
    key = ring.keys[0]
    key.charge(100, 0.0)
    with pytest.raises(RequestError):
        key.charge(50, 0.0)
    key.correct(-60)  # it came to 40 only
    key.charge(50, 0.0)


def let_in(ring: KeyRing, now: float) -> int:
    """Requests of one token that are let in until one is not."""
    for number in range(10_000):
        try:
            ring.find("Bearer secret-one").charge(1, now)
        except RequestError:
            return number
    raise AssertionError("no limit")


@pytest.mark.parametrize("limit", [{"requestsPerMinute": 600}, {"tokensPerMinute": 600}])
def test_a_limit_holds_for_the_sum_while_gateways_come_and_go(tmp_path: Path, limit: dict[str, float]) -> None:
    folder = write(tmp_path, one={"key": "secret-one", **limit})
    first, second, third = KeyRing(folder), KeyRing(folder), KeyRing(folder)
    # Two from the start: together a minute's worth.
    first.share(2, 0.0)
    second.share(2, 0.0)
    assert (let_in(first, 0.0), let_in(second, 0.0)) == (300, 300)
    # A third comes with its own part, full; in the minutes after, all three together get the limit.
    for ring in (first, second, third):
        ring.share(3, 0.0)
    assert [let_in(ring, 0.0) for ring in (first, second, third)] == [0, 0, 200]
    assert sum(let_in(ring, 60.0) for ring in (first, second, third)) == 600
    # Two go: the last one earns the whole limit from now on, and nothing for what they had left.
    first.share(1, 60.0)
    assert let_in(first, 60.0) == 0
    assert let_in(first, 90.0) == 300
    assert let_in(first, 150.0) == 600


def test_what_is_left_shrinks_with_more_gateways_and_is_not_given_back(tmp_path: Path) -> None:
    ring = KeyRing(write(tmp_path, one={"key": "secret-one", "tokensPerMinute": 600}))
    for gateways in (2, 1, 2, 1):  # one whose readiness flaps
        ring.share(gateways, 0.0)
    assert let_in(ring, 0.0) == 150
    # What was overdrawn is owed, however many there are.
    ring.keys[0].correct(300)
    ring.share(2, 0.0)
    assert let_in(ring, 59.0) == 0
    assert let_in(ring, 61.0) >= 1


def test_a_key_that_is_added_later_is_shared_too(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.share(4, 0.0)
    write(tmp_path, one={"key": "secret-one", "requestsPerMinute": 8})
    ring.refresh()
    assert let_in(ring, 0.0) == 2


async def test_keys_over_the_wire(make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.gateway.app.RELOAD_SECONDS", 0.02)
    write(
        tmp_path,
        app="secret-app",
        gold={"key": "secret-gold", "class": "gold", "requestsPerMinute": 1},
        gone={"key": "secret-gone", "class": "abolished"},
        free={"key": "secret-free", "classes": ["gold", "abolished"]},
    )
    site = await make_site(
        Engine("m", Role.MIXED),
        slo_seconds=(1.0, 1.0),
        config={"admission": Admission(classes=CLASSES), "api_keys_directory": str(tmp_path)},
    )
    answers = await site.post(BODY), await site.post(BODY, headers="x-tier: gold\r\n"), await site.get("/v1/models")
    for refused in answers:
        assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready"):
        assert (await site.get(path)).status == 200
    assert await site.metric("fulcrum_gateway_arrivals_total") == 0

    for key, header, name in (
        ("app", "", "rest"),
        ("app", "x-tier: gold\r\n", "rest"),
        ("app", "x-tier: batch\r\n", "batch"),
        ("free", "x-tier: gold\r\n", "gold"),
        ("free", "x-tier: silver\r\n", "rest"),
        ("free", "", "rest"),
        ("gone", "x-tier: gold\r\n", "rest"),
        ("gold", "", "gold"),
    ):
        before = await site.metric(f'fulcrum_gateway_arrivals_total{{class="{name}"}}')
        assert (await site.post(BODY, headers=f"Authorization: Bearer secret-{key}\r\n{header}")).status == 200
        assert await site.metric(f'fulcrum_gateway_arrivals_total{{class="{name}"}}') == before + 1

    limited = await site.post(BODY, headers="Authorization: Bearer secret-gold\r\n")
    assert (limited.status, limited.headers["x-fulcrum-rejected"]) == (429, "RateLimited")
    assert 50 <= int(limited.headers["retry-after"]) <= 60
    # What a key may not ask for is no load to be served, and no broken promise.
    assert await site.metric("fulcrum_gateway_arrivals_total") == 8
    assert await site.metric('fulcrum_gateway_slo_total{outcome="rejected"}') == 0
    assert all("authorization" not in seen.headers for seen in site.engines["m"].seen)

    keys = site.gateway.admission.keys
    assert keys is not None
    before_change = keys.keys
    write(tmp_path, app="secret-other")
    await eventually(lambda: keys.keys is not before_change)
    assert (await site.post(BODY, headers="Authorization: Bearer secret-app\r\n")).status == 401
    assert (await site.post(BODY, headers="Authorization: Bearer secret-other\r\n")).status == 200


def test_where_the_keys_are(tmp_path: Path) -> None:
    document = {"cluster": "c", "servedName": "m", "model": "m", "apiKeysDirectory": "/etc/keys"}
    environment = {"FULCRUM_GATEWAY_CONFIG": json.dumps(document)}
    assert read_settings(environment).config.api_keys_directory == "/etc/keys"
    # What a kubelet says of its volumes is none of the gateway's business.
    elsewhere = {**environment, "FULCRUM_VOLUME_API_KEYS": str(tmp_path)}
    assert read_settings(elsewhere).config.api_keys_directory == "/etc/keys"


async def test_prompts_of_one_key_never_hit_what_another_left_in_a_prefix_cache(
    make_site: MakeSite, tmp_path: Path
) -> None:
    write(tmp_path, one="secret-one", two="secret-two")
    prefill, decode = Engine("p", Role.PREFILL), Engine("d", Role.DECODE)
    site = await make_site(prefill, decode, config={"api_keys_directory": str(tmp_path), "salt_prefixes": True})

    async def salts(key: str, **fields: str) -> set[str]:
        prefill.seen.clear()
        decode.seen.clear()
        assert (await site.post({**BODY, **fields}, headers=f"Authorization: Bearer secret-{key}\r\n")).status == 200
        found = {seen.body["cache_salt"] for seen in (*prefill.seen, *decode.seen)}
        assert len(found) == 1, "both legs, or the decode engine could not use its own cache"
        return found

    one, again, two = await salts("one"), await salts("one"), await salts("two")
    assert one == again
    assert one != two
    assert "secret" not in str(one)
    # A client's own salt divides its prompts further, and cannot be another key's.
    assert await salts("one", cache_salt="tenant-7") not in (one, two)
    assert await salts("one", cache_salt="tenant-7") == await salts("one", cache_salt="tenant-7")
    assert await salts("two", cache_salt=next(iter(one))) != one


async def test_without_the_option_prompts_go_on_as_they_came(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, one="secret-one")
    engine = Engine("m", Role.MIXED)
    site = await make_site(engine, config={"api_keys_directory": str(tmp_path)})
    assert (await site.post(BODY, headers="Authorization: Bearer secret-one\r\n")).status == 200
    assert all("cache_salt" not in seen.body for seen in engine.seen)
