"""The sockets on which daemons talk of moves: one an own address, every datagram signed with the addresses it bears."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import select
import socket
from collections.abc import Callable
from typing import Final

import structlog

from linkpass.wire.probe import MAC_BYTES, Signer
from rdma.words import MOST_BYTES, Word, decode, encode

_SO_BINDTODEVICE: Final = 25
AT_ONCE: Final = 64
"""Datagrams read before the loop has its turn: whoever floods the port must not have it for himself."""
logger = structlog.get_logger()


class Talk:
    """`heard` takes (own address, the peer's, word) of everything that is signed. `device`: a VRF to bind to."""

    def __init__(self, signer: Signer, heard: Callable[[str, str, Word], None], *, port: int, device: str = "") -> None:
        self._signer, self._heard, self._port, self._device = signer, heard, port, device
        self._sockets: dict[str, socket.socket] = {}
        self._failed: set[str] = set()
        """Addresses that could not be bound, and of which that was said."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.refused = 0
        """Datagrams that were not signed with the fabric's key, or no words."""

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self.listen(set(), keep=False)
        self._loop = None

    def listen(self, addresses: set[str], *, keep: bool) -> None:
        """On these, and, with `keep`, on those that are open already. To be called in the namespace."""
        for address in self._sockets.keys() - addresses if not keep else ():
            self._close_socket(address)
        for address in addresses - self._sockets.keys():
            self._open_socket(address)

    def send(self, own: str, peer: str, word: Word) -> None:
        """What cannot be sent is lost like any datagram."""
        sock = self._sockets.get(own)
        if sock is None:
            return
        body = encode(word)
        try:
            sock.sendto(body + self._signer.mac(_packed(own, peer) + body), (peer, self._port))
        except OSError as error:
            logger.debug("a word about a move was not sent", peer=peer, error=str(error))

    def _open_socket(self, address: str) -> None:
        if self._loop is None:
            return
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(kind, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if self._device:
                sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, self._device.encode())
            sock.bind((address, self._port))
        except OSError as error:
            if address not in self._failed:
                self._failed.add(address)
                logger.warning("cannot listen for words about moves", address=address, error=str(error))
            sock.close()
            return
        self._failed.discard(address)
        self._sockets[address] = sock
        self._loop.add_reader(sock, self._read, address, sock)

    def _close_socket(self, address: str) -> None:
        sock = self._sockets.pop(address)
        if self._loop is not None:
            self._loop.remove_reader(sock)
        sock.close()

    def wait(self, seconds: float) -> None:
        """Hear what comes within so long, the loop standing meanwhile: for a daemon that ends."""
        ready, _, _ = select.select(list(self._sockets.values()), [], [], seconds)
        for address, sock in list(self._sockets.items()):
            if sock in ready:
                self._read(address, sock)

    def _read(self, own: str, sock: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                data, source = sock.recvfrom(MOST_BYTES + MAC_BYTES)
            except OSError:
                return
            peer = str(ipaddress.ip_address(source[0].partition("%")[0]))
            body, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
            good = hmac.compare_digest(mac, self._signer.mac(_packed(peer, own) + body))
            word = decode(body) if good else None
            if word is None:
                self.refused += 1
            else:
                self._heard(own, peer, word)


def _packed(source: str, destination: str) -> bytes:
    return ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
