"""The control socket: HTTP with JSON over a unix socket that root alone may open.

    GET  /status /paths /why/{id} /journal?since=SEQ /healthz /metrics
    POST /drain /undrain /clear      {"link": "leaf1-spine1", "everywhere": false}
    POST /arrived                    {"rank": 3, "step": 1200}: from a trainer, when a rank comes to a step's boundary

Every error is `{"error": .., "hint": ..}` with a fitting status. Links may be named as `a-b`, as one direction `a>b`,
or by the uplink of this host that they are."""

from __future__ import annotations

import asyncio
import difflib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import structlog
from aiohttp import web

from linkpass.core.events import ClearRequested, DrainRequested, Event, UndrainRequested

MAX_BODY_BYTES = 65_536
OTHERS_STILL_USE_IT = (
    "not a link of this host: only its own traffic avoids it; order it on the others, too, or use --all"
)
ORDERED = (
    "not a link of this host: of the daemons that are told, those follow whose `operators` name this host's address; "
    "order it on the others, too"
)
OBSERVED = "mode is observe: nothing moves here, and no peer is told"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Faces(Protocol):
    """What the daemon shows and takes. Everything returned is plain data or msgspec structs."""

    def view(self) -> Mapping[str, Any]:
        """What is known at once: `netns` is left to `namespaces`."""

    async def namespaces(self) -> Sequence[Any]:
        """The network namespaces with connections; looked for on another thread, for it takes its time."""

    def paths(self) -> Sequence[Any]: ...

    def why(self, name: str) -> Sequence[Any]:
        """The journal's story of a causal id or of an element; empty when there is none."""

    def causes(self) -> Sequence[str]:
        """Causal ids that have a story, newest first."""

    def journal(self, since: int) -> Sequence[Any]:
        """Entries after a sequence number."""

    def links(self) -> Iterable[str]:
        """Links and directions of the fabric's file that may be named besides those in the view. Called in a thread."""

    def metrics(self) -> bytes:
        """The Prometheus exposition."""

    def arrived(self, rank: int, step: int) -> bool:
        """A rank of this host has come to a step. False: nobody looks for stragglers here."""

    async def submit(self, event: Event) -> Mapping[str, Any]:
        """Put an operator's event to the core; what came of it. May raise RefusedError."""


class RefusedError(Exception):
    """A request cannot be carried out; `hint` is the next step."""

    def __init__(self, error: str, hint: str = "", status: int = 409) -> None:
        super().__init__(error)
        self.error, self.hint, self.status = error, hint, status


class ControlError(Exception):
    """The socket cannot be opened; the text names it and the next step."""

    def __init__(self, text: str, *, denied: bool = False) -> None:
        super().__init__(text)
        self.denied = denied
        """For want of privileges."""


class LinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    link: str
    everywhere: bool = False


class ArrivedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class ControlEdge:
    """Serves the faces on a unix socket.

    A lock file beside the socket tells a live daemon from what a killed one left behind: the kernel drops the lock
    with the process."""

    def __init__(self, path: str | Path, faces: Faces) -> None:
        self.path = Path(path)
        self._faces = faces
        self._runner: web.AppRunner | None = None
        self._lock: int | None = None

    async def open(self) -> None:
        """Bind and serve. Raises ControlError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            listener = self._bind()
        except OSError as error:
            self._drop_lock()
            denied = error.errno in (errno.EACCES, errno.EPERM)
            raise ControlError(_cannot(self.path, error), denied=denied) from None
        except ControlError:
            self._drop_lock()
            raise
        self._runner = web.AppRunner(self._app(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            self.path.unlink(missing_ok=True)
        self._drop_lock()

    async def __aenter__(self) -> ControlEdge:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _take_lock(self) -> None:
        lock = Path(f"{self.path}.lock")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(self._lock, 20).decode(errors="replace").strip()
            raise ControlError(_in_use(self.path, f"process {pid}" if pid else "another process")) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _bind(self) -> socket.socket:
        self._remove_stale()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)  # from the first moment on for its owner alone
        try:
            listener.bind(str(self.path))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        return listener

    def _remove_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ControlError(f"control socket {self.path}: something else is there; move it, or set control.socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            if probe.connect_ex(str(self.path)) != errno.ECONNREFUSED:
                raise ControlError(_in_use(self.path, "another program"))
        self.path.unlink()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/status", self._status),
                web.get("/paths", self._paths),
                web.get("/why/{name:.+}", self._why),
                web.get("/journal", self._journal),
                web.get("/healthz", self._healthz),
                web.get("/metrics", self._metrics),
                web.post("/drain", self._drain),
                web.post("/undrain", self._undrain),
                web.post("/clear", self._clear),
                web.post("/arrived", self._arrived),
            ]
        )
        return app

    async def _status(self, _: web.Request) -> web.Response:
        netns = await self._faces.namespaces()
        return answer({**self._faces.view(), "netns": netns})

    async def _paths(self, _: web.Request) -> web.Response:
        return answer({"paths": self._faces.paths()})

    async def _healthz(self, _: web.Request) -> web.Response:
        return answer({"ok": True, "pid": os.getpid()})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._faces.metrics(), headers={"Content-Type": METRICS_TYPE})

    async def _why(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        entries = self._faces.why(name)
        if not entries:
            causes = list(self._faces.causes())
            near = difflib.get_close_matches(name, causes, 3) or causes[:3]
            hint = f"the newest: {', '.join(near)}" if near else "the journal is empty: nothing has happened yet"
            raise RefusedError(f"no story of {name} in the journal", hint, 404)
        return answer({"id": name, "entries": entries})

    async def _journal(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdecimal():
            raise RefusedError(f"since={since}: expected a sequence number", "start with since=0", 400)
        return answer({"entries": self._faces.journal(int(since))})

    async def _drain(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        link = await self._find(asked.link)
        return await self._submit(link, DrainRequested(link=link, everywhere=asked.everywhere), self._who(asked, link))

    async def _undrain(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        link = await self._find(asked.link)
        return await self._submit(link, UndrainRequested(link=link, everywhere=asked.everywhere))

    def _who(self, asked: LinkRequest, link: str) -> str:
        """Whose traffic follows, where it is not that of this host and of all its peers."""
        if self._faces.view().get("mode") == "observe":
            return OBSERVED
        if self._is_own(link):
            return ""
        return ORDERED if asked.everywhere else OTHERS_STILL_USE_IT

    async def _clear(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        if asked.link == (host := str(self._faces.view().get("host", ""))) and host:
            return await self._submit(host, ClearRequested(link=host), "with it, what was held against this host")
        link = "*" if asked.link == "*" else await self._find(asked.link)
        return await self._submit(link, ClearRequested(link=link))

    async def _arrived(self, request: web.Request) -> web.Response:
        try:
            came = msgspec.json.decode(await request.read(), type=ArrivedRequest)
        except msgspec.MsgspecError as error:
            raise RefusedError(f"not a request: {error}", 'expected {"rank": 3, "step": 1200}', 400) from None
        if not self._faces.arrived(came.rank, came.step):
            raise RefusedError("stragglers are not looked for", "set stragglers.enabled = true", 409)
        return answer({"ok": True})

    async def _submit(self, link: str, event: Event, note: str = "") -> web.Response:
        return answer({"ok": True, "link": link, "note": note, **await self._faces.submit(event)})

    def _is_own(self, link: str) -> bool:
        """One end of the link is this host: its peers are told in any case."""
        host = str(self._faces.view().get("host", ""))
        return any(link.startswith(host + mark) or link.endswith(mark + host) for mark in "->")

    async def _asked(self, request: web.Request) -> LinkRequest:
        try:
            return msgspec.json.decode(await request.read(), type=LinkRequest)
        except msgspec.MsgspecError as error:
            raise RefusedError(f"not a request: {error}", 'expected {"link": "leaf1-spine1"}', 400) from None

    async def _find(self, text: str) -> str:
        """The fabric's file may have to be read first, some 0.2 s of work: beside the loop, where no probe waits."""
        return find_link(text, self._faces.view(), await asyncio.to_thread(self._faces.links))


def find_link(text: str, view: Mapping[str, Any], more: Iterable[str] = ()) -> str:
    """The link or direction that an operator means: named as such, from either end, or by this host's uplink.

    Raises RefusedError with near matches."""
    names: dict[str, str] = {}
    for known in (*(link["id"] for link in view.get("links", ())), *more):
        names[known] = known
        a, arrow, b = known.partition(">")
        if arrow:
            names.setdefault(f"{a}-{b}", f"{a}-{b}")
            names.setdefault(f"{b}-{a}", f"{b}-{a}")
            names.setdefault(f"{b}>{a}", f"{b}>{a}")
    for path in view.get("paths", ()):
        hops = path.get("hops") or ()
        if hops and hops[0]:
            names.setdefault(path["uplink"], f"{view.get('host', '')}-{hops[0]}")
    if text in names:
        return names[text]
    near = difflib.get_close_matches(text, [name for name in names if ">" not in name or ">" in text], 3, 0.5)
    whole = sorted(name for name in names if ">" not in name)
    listed = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(whole[:12])}" if whole else ""
    hint = listed or "this host has traced no path yet; ask again when `linkpass paths` shows some"
    raise RefusedError(f"no link {text}", hint, 404)


def answer(value: Any, status: int = 200) -> web.Response:
    """A JSON response; what is not plain is written as text."""
    body = msgspec.json.encode(value, enc_hook=str)
    return web.Response(body=body, status=status, content_type="application/json")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as refused:
        return answer({"error": refused.error, "hint": refused.hint}, refused.status)
    except web.HTTPException as error:
        routes = sorted({r.resource.canonical for r in request.app.router.routes() if r.resource})
        hint = f"there are {', '.join(routes)}" if error.status in (404, 405) else ""
        return answer({"error": f"{request.method} {request.path}: {error.reason}", "hint": hint}, error.status)
    except Exception as error:
        logger.exception("control request failed", path=request.path)
        return answer(
            {"error": f"internal error: {type(error).__name__}: {error}", "hint": "see the daemon's log"}, 500
        )


def _in_use(path: Path, who: str) -> str:
    return f"control socket {path}: in use by {who}; `linkpass status --socket {path}` asks it, or set control.socket"


def _cannot(path: Path, error: OSError) -> str:
    hint = "run as root, or set control.socket" if error.errno in (errno.EACCES, errno.EPERM) else "set control.socket"
    return f"control socket {path}: {error.strerror}; {hint}"
