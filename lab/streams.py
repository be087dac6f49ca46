"""Many TCP streams between all hosts of a lab, each as fast as the others: what a fabric spreads over its links.

    python streams.py --bind fd00::1 --peers fd00::2,fd00::3 --flows 16

One process on every host. Each opens its own connections and says `ready` when all stand; peers may come up later.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

PORT = 29400
CHUNK = bytes(2048)
EVERY_S = 0.05
RETRY_S = 0.05


async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    finally:
        writer.close()


async def connected(bind: str, peer: str) -> asyncio.StreamWriter:
    while True:
        try:
            return (await asyncio.open_connection(peer, PORT, local_addr=(bind, 0)))[1]
        except OSError:
            await asyncio.sleep(RETRY_S)


async def feed(writer: asyncio.StreamWriter, after_s: float) -> None:
    await asyncio.sleep(after_s)
    while True:
        writer.write(CHUNK)
        await writer.drain()
        await asyncio.sleep(EVERY_S)


async def run(bind: str, peers: list[str], flows: int) -> None:
    server = await asyncio.start_server(swallow, bind, PORT)
    writers = [await connected(bind, peer) for peer in peers for _ in range(flows)]
    print("ready", flush=True)
    async with server, asyncio.TaskGroup() as tasks:
        for number, writer in enumerate(writers):
            tasks.create_task(feed(writer, EVERY_S * number / len(writers)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bind", required=True)
    parser.add_argument("--peers", required=True, help="addresses, separated by commas")
    parser.add_argument("--flows", type=int, required=True, help="connections to each peer")
    args = parser.parse_args()
    try:
        asyncio.run(run(args.bind, args.peers.split(","), args.flows))
    except ExceptionGroup as group:  # a peer has ended
        print(group.exceptions[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
