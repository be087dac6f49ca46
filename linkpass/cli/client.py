"""The client of the control socket: the standard library's HTTP over a unix socket, because it starts fast."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from linkpass.cli.common import NoDaemonError, NotPermittedError, TroubleError

TIMEOUT_S = 10.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


class Client:
    """Asks a daemon. Every failure is a TroubleError that says what to do next."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, *parts: str, **query: Any) -> Any:
        """GET /part/part?query; the decoded JSON."""
        url = "/" + "/".join(quote(part, safe="") for part in parts)
        return self._ask("GET", url + ("?" + urlencode(query) if query else ""))

    def post(self, part: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", "/" + part, json.dumps(body))

    def _ask(self, method: str, url: str, body: str | None = None) -> Any:
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, url, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            status, data = response.status, response.read()
        except FileNotFoundError:
            hint = "start one with `linkpass run`, or name its socket with --socket or its configuration with --config"
            raise NoDaemonError(f"no daemon has a socket at {self.path}", hint) from None
        except ConnectionRefusedError:
            hint = "start it again with `linkpass run`; traffic is with the kernel's own routes meanwhile"
            raise NoDaemonError(f"the daemon that made {self.path} is gone", hint) from None
        except PermissionError:
            raise NotPermittedError(f"{self.path} is not open to this user", "ask as root (sudo)") from None
        except TimeoutError:
            hint = "it may be frozen or starved of the processor; see its log"
            raise NoDaemonError(f"the daemon at {self.path} gave no answer in {TIMEOUT_S:g} s", hint) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoDaemonError(f"{self.path}: {why}", "is this a linkpass daemon's socket?") from None
        finally:
            connection.close()
        try:
            answer = json.loads(data)
        except ValueError:
            raise NoDaemonError(f"{self.path}: the answer is not JSON", "is this a linkpass daemon?") from None
        if status >= 400:
            raise TroubleError(answer.get("error", f"status {status}"), answer.get("hint", ""))
        return answer
