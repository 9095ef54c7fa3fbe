"""How answers of a collector are read: their status, and nothing else."""

from __future__ import annotations

from typing import Any

from requests import Response, Session
from requests.exceptions import InvalidSchema


class CollectorSession(Session):
    """Reads no body, whatever its size, follows no redirect, and takes one for a failure."""

    def request(self, *arguments: Any, **options: Any) -> Response:
        answer = super().request(*arguments, **(options | {"stream": True, "allow_redirects": False}))
        answer.close()  # with it the connection, on which a body may still be coming
        if answer.is_redirect:  # the SDK would call it a success
            raise InvalidSchema(f"{answer.status_code}: redirects are not followed")
        return answer
