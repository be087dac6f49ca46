"""One connection to the store, kept up: through restarts of the server, and when the server closes it for good.

What a NATS client does by itself: it reconnects, and its subscriptions are there again. What it does not: it stays
closed after an error that the server sends (a late authentication on a busy machine is one), it keeps what was
published meanwhile and sends it when nobody expects it any more, and it does not say that messages were missed. Here
the first is made anew, the second is refused (`StoreAway`), and `epoch` counts the third.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

TRY_S = 0.3
"""For one request to be answered; then it is sent again, under the same id."""
PATIENCE_S = 1.0
"""For the store to come back within one call. A restart of the server takes some hundredths of a second."""
OPEN_S = 3.0
RETRY_S = 0.05
"""Between two attempts to connect again."""
PING_S = 1.5
"""Between two signs of life that the server is asked for. After two that did not come the connection is given up."""
QUEUE = 4096
"""Messages that are kept for a listener that is slow; then the oldest go."""


class StoreAway(Exception):  # noqa: N818 (names say what is so)
    """The store did not answer, or cannot do it. Nothing is known of a write that was tried: read again, or go by the
    watcher."""


class Conflict(Exception):  # noqa: N818
    """The record is not the one that was decided on: somebody else wrote it. Read it again and decide again."""


AWAY = (
    TimeoutError, OSError, nats.errors.TimeoutError, nats.errors.NoRespondersError, nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError, nats.errors.OutboundBufferLimitError, nats.errors.StaleConnectionError,
    nats.js.errors.NoStreamResponseError, nats.js.errors.ServiceUnavailableError,
)  # fmt: skip

_log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[Msg], Awaitable[None]]
Hearer = Callable[[bytes], None]
"""What takes the bytes of a message, at once, in the loop that reads them."""


class Reader(Client):
    """The client, with a short way for what comes often: by its own each message wakes a task for the queue of its
    subscription. A client that comes to name this otherwise takes its own way, by the listener that is given, too."""

    def __init__(self) -> None:
        super().__init__()
        self.hearers: dict[int, Hearer] = {}
        """By the number of the subscription."""

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        hearer = self.hearers.get(sid)
        if hearer is not None:
            hearer(data)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)


class Link:
    """`epoch` grows whenever messages may have been missed."""

    def __init__(self, url: str, name: str = "") -> None:
        self.url = url
        self.epoch = 0
        self._name = name
        self._client = Reader()
        self._up = asyncio.Event()
        self._closing = False
        self._trouble = ""
        self._listeners: dict[int, tuple[str, Listener]] = {}
        self._hearers: dict[int, Hearer] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._numbers = itertools.count()
        self._on_epoch: set[Callable[[], None]] = set()
        self._renewing: asyncio.Future[None] | None = None
        self._ids = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())

    @property
    def up(self) -> bool:
        return self._client.is_connected

    @property
    def place(self) -> str:
        """The address without the password, for people."""
        return ", ".join(urlsplit(one).netloc.rpartition("@")[2] for one in self._servers())

    @property
    def js(self) -> JetStreamContext:
        return self._client.jetstream(timeout=TRY_S)

    @property
    def max_bytes(self) -> int:
        return self._client.max_payload

    @property
    def replicas(self) -> int:
        """Of what is stored: three where the server is one of a cluster."""
        return 3 if self._client._server_info.get("cluster") else 1

    def new_id(self) -> str:
        """Of a message: sent twice, it is taken once."""
        return next(self._ids)

    async def open(self) -> None:
        """StoreAway when nobody answers at the address within `OPEN_S`, or the password is refused."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + OPEN_S
        while True:
            try:
                return await self._connect()
            except (*AWAY, nats.errors.Error) as error:
                if loop.time() >= until_s or "authorization" in self._trouble.lower():
                    raise StoreAway(
                        f"no store at {self.place}: {self._trouble or _words(error)}. Is it started (torchpass store), "
                        "and are address and password right?"
                    ) from error

    async def close(self) -> None:
        self._closing = True
        if self._renewing is not None:
            self._renewing.cancel()
        await self._client.close()

    async def call(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer, for `PATIENCE_S`. `ask` must do no harm when it is done twice."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        until_s = loop.time() + PATIENCE_S
        cancels = task.cancelling() if task else 0
        while True:
            try:
                if not self.up:
                    async with asyncio.timeout_at(until_s):
                        await self._up.wait()
                answer = await ask()
                if task and task.cancelling() > cancels:
                    raise asyncio.CancelledError  # Python 3.11's wait_for loses it when the answer comes that moment
                return answer
            except AWAY as error:
                if loop.time() >= until_s or self._closing:
                    raise StoreAway(f"{what}: the store at {self.place} does not answer ({_words(error)})") from error
                await asyncio.sleep(0.01)
            except nats.errors.Error as error:
                raise StoreAway(f"{what}: the store at {self.place} refuses it ({_words(error)})") from error

    async def send(self, subject: str, data: bytes) -> None:
        """To whoever listens now. Lost when the store is away: it is nothing that is not said again."""
        if self.up:
            try:
                await self._client.publish(subject, data)
            except AWAY:
                pass

    def say(self, subject: str, data: bytes) -> None:
        """The same at once, without a task: for what is said all the time. Called in the client's loop."""
        client = self._client
        if client.is_connected and client._transport is not None:
            client._transport.write(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data))

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """nats.errors.NoRespondersError: nobody listens there."""
        answer = await self._client.request(subject, data, timeout=timeout_s)
        return answer.data

    async def listen(self, subject: str) -> AsyncIterator[Msg]:
        """All messages from now on, for ever; after a time away it goes on with those that come then."""
        queue: asyncio.Queue[Msg] = asyncio.Queue(QUEUE)

        async def take(message: Msg) -> None:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)

        number = await self.attend(subject, take)
        try:
            while True:
                yield await queue.get()
        finally:
            await self.leave(number)

    async def hear(self, subject: str, hearer: Hearer) -> int:
        """All messages from now on, given to `hearer` as they are read; `leave` ends it."""

        def take(data: bytes) -> None:
            try:
                hearer(data)
            except Exception:  # noqa: BLE001 - what is wrong with a message must not end the connection's reading
                _log.exception("a message of %s", subject)

        async def listener(message: Msg) -> None:
            take(message.data)

        return await self.attend(subject, listener, take)

    async def attend(self, subject: str, listener: Listener, hearer: Hearer | None = None) -> int:
        """`hearer`: what takes the messages in place of `listener`, by the client's short way."""
        number = next(self._numbers)
        self._listeners[number] = (subject, listener)
        if hearer is not None:
            self._hearers[number] = hearer
        if self.up:
            await self._subscribe(number)
        return number

    async def leave(self, number: int) -> None:
        self._listeners.pop(number, None)
        self._hearers.pop(number, None)
        subscription = self._subscriptions.pop(number, None)
        if subscription is not None:
            self._client.hearers.pop(subscription._id, None)
        if subscription is not None and not self._closing:
            try:
                await subscription.unsubscribe()
            except (*AWAY, nats.errors.Error):
                pass

    def on_epoch(self, call: Callable[[], None]) -> Callable[[], None]:
        """`call` after each time away; what is returned ends that."""
        self._on_epoch.add(call)
        return lambda: self._on_epoch.discard(call)

    # the client
    def _servers(self) -> list[str]:
        return [one.strip() for one in self.url.split(",") if one.strip()]

    async def _connect(self) -> None:
        servers = self._servers()
        known = urlsplit(servers[0])
        client = Reader()
        try:
            await client.connect(
                [_without_login(one) for one in servers],
                name=self._name or None,
                user=unquote(known.username) if known.password is not None and known.username else None,
                password=unquote(known.password) if known.password is not None else None,
                token=unquote(known.username) if known.password is None and known.username else None,
                error_cb=self._note,
                disconnected_cb=self._went,
                reconnected_cb=self._came,
                closed_cb=self._shut,
                connect_timeout=1,
                reconnect_time_wait=RETRY_S,  # type: ignore[arg-type]  # seconds, not whole ones
                max_reconnect_attempts=1,
                ping_interval=PING_S,  # type: ignore[arg-type]  # seconds, not whole ones
                max_outstanding_pings=1,
                pending_size=0,
            )
        except BaseException:
            await client.close()
            raise
        # Not before: an endless first attempt cannot be cancelled (Python 3.11's wait_for loses cancellations).
        client.options["max_reconnect_attempts"] = -1
        self._client = client
        self._subscriptions.clear()
        await self._came()

    async def _came(self) -> None:
        self._trouble = ""
        for number in list(self._listeners):
            if number not in self._subscriptions:
                await self._subscribe(number)
        self.epoch += 1
        self._up.set()
        for call in list(self._on_epoch):
            call()

    async def _went(self) -> None:
        self._up.clear()

    async def _shut(self) -> None:
        """Closed, and not by us: another client takes its place."""
        self._up.clear()
        if not self._closing and self._client.is_closed and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        while not self._closing:
            try:
                await self._connect()
            except (*AWAY, nats.errors.Error):
                await asyncio.sleep(RETRY_S)
            else:
                break

    async def _note(self, error: Exception) -> None:
        self._trouble = _words(error)
        _log.debug("store at %s: %s", self.place, self._trouble)

    async def _subscribe(self, number: int) -> None:
        subject, listener = self._listeners[number]
        made = self._subscriptions[number] = await self._client.subscribe(subject, cb=listener)
        if number in self._hearers:
            self._client.hearers[made._id] = self._hearers[number]


def _without_login(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
