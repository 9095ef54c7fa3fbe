"""Which headers carry a cluster's token."""

from __future__ import annotations

import pytest

from fulcrum.api.internal_token import authorization, fingerprint, is_authorized


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        (authorization("secret"), True),
        ("bearer secret", True),
        ("Bearer secre", False),
        ("Bearer secret2", False),
        ("Bearer  secret", False),
        ("Bearer secret, Bearer secret", False),
        ("Basic  secret", False),
        ("secret", False),
        ("Bearer ", False),
        ("Bearer s\u00e9cret\udcff", False),
        ("", False),
        (None, False),
    ],
)
def test_who_knows_the_token(header: str | None, holds: bool) -> None:
    assert is_authorized(header, "secret") is holds


def test_a_fingerprint_tells_tokens_apart_and_does_not_hold_them() -> None:
    assert fingerprint("a" * 43) != fingerprint("b" * 43)
    assert len(fingerprint("a" * 43)) == 16
    assert "aaa" not in fingerprint("a" * 43)
