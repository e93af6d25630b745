"""Calls over HTTP to an engine: JSON there, JSON back, and errors that say which call of which engine failed."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from deltavc.errors import BadMetadata, EngineRefused, EngineUnreachable

_SHOWN = 500


class Http:
    """Calls to one engine.

    url: such as http://host:30000. timeout: seconds that an answer may take. token: sent as a bearer token, if given.
    """

    def __init__(self, url: str, timeout: float, token: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadMetadata("engine", f"{url!r} is no address of an engine: it is like http://host:30000")
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def get(self, path: str, **query: str) -> Any:
        """What the engine answers. Raises what `post` raises."""
        return self._call("GET", path, None, query, 0)

    def succeeds(self, path: str) -> bool:
        """Whether the engine answers a GET without an error. Raises EngineUnreachable."""
        try:
            self.get(path)
        except EngineRefused:
            return False
        return True

    def post(self, path: str, body: Mapping[str, Any] | None = None, accept: int = 0, **query: str) -> Any:
        """What the engine answers: JSON where it is that, text otherwise.

        Args:
            accept: an error's status whose answer is of use all the same.

        Raises:
            EngineUnreachable: it does not answer, or not in time; it may have done what it was asked for.
            EngineRefused: it answered with an error.
        """
        return self._call("POST", path, {} if body is None else body, query, accept)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str], accept: int
    ) -> Any:
        asked = f"?{urllib.parse.urlencode(query)}" if query else ""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path + asked, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                text = answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            if error.code != accept:
                raise EngineRefused(self.url, path, _reason(error.code, text)) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise EngineUnreachable(self.url, f"{path}: {reason or type(error).__name__}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text


def _reason(status: int, said: str) -> str:
    """What an error says: engines put it in `message`, `detail` or `error`."""
    try:
        told = json.loads(said)
    except ValueError:
        told = said
    if isinstance(told, dict):
        error = told.get("error")
        inner = error if isinstance(error, dict) else told
        told = next((inner[key] for key in ("message", "detail", "error") if inner.get(key)), told)
    return f"{status}: {str(told).strip()[:_SHOWN]}"
