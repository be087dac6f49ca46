"""The program nft (nftables): tables are made by it, and what changes often goes to the kernel without it."""

from __future__ import annotations

import shutil
import subprocess

NFT_S = 10.0


class NoNftError(RuntimeError):
    """A table cannot be had on this host; the text says why and what to do."""


def run(rules: str, needed: str, table: str) -> None:
    """Have a script taken as one transaction, in this thread's namespace (some 20 ms). Raises NoNftError.

    `needed`: what cannot do without; `table`: what it makes."""
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if nft is None:
        raise NoNftError(f"{needed} needs the program nft: install the package nftables")
    try:
        done = subprocess.run([nft, "-f", "-"], input=rules, text=True, capture_output=True, timeout=NFT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNftError(f"{needed} needs the program nft, which does not run here: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise NoNftError(f"nft refused {table}: {said[0] if said else f'exit {done.returncode}'}")
