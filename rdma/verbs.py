"""The one place that imports pyverbs, and it does so when verbs are first needed: a host without RDMA never loads it.

pyverbs is bound to the private interface of one release of libibverbs (symbol version IBVERBS_PRIVATE_nn), so the one
that works is the distribution's, built with its rdma-core. `make setup` links it into the virtual environment
(tools/link-pyverbs). Needs the standard library alone, so that small programs can use it, too.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

PACKAGE: Final = "python3-pyverbs"
DISTRIBUTION: Final = Path("/usr/lib/python3/dist-packages/pyverbs")
_ABI: Final = re.compile(r"version `IBVERBS_PRIVATE_(\d+)' not found")
_LIBRARY: Final = re.compile(r"(lib\w+\.so[.\d]*): cannot open shared object file")


class VerbsError(Exception):
    """Verbs cannot be used here; the text is one sentence that says why, and what to install or do."""


class Pyverbs(NamedTuple):
    """pyverbs' modules. Not typed: they come without types."""

    addr: Any
    cq: Any
    device: Any
    enums: Any
    mr: Any
    pd: Any
    pyverbs_error: Any
    qp: Any
    wr: Any


def load() -> Pyverbs:
    """Raises VerbsError. Some 30 ms the first time, on a server's processor."""
    try:
        return Pyverbs(*(importlib.import_module(f"pyverbs.{name}") for name in Pyverbs._fields))
    except ImportError as error:
        raise VerbsError(explain(error)) from error


def open_device(name: str) -> Any:
    """A context of the RDMA device of that name, closed with `close()`. Raises VerbsError."""
    pyverbs = load()
    try:
        return pyverbs.device.Context(name=name)
    except Exception as error:
        raise VerbsError(_not_opened(name, error)) from error


def event_descriptors() -> set[int]:
    """This process's descriptors for events and completions, which pyverbs does not tell: those that are new after a
    context or a completion channel was opened are its own."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(Path("/proc/self/fd") / name) == "anon_inode:[infinibandevent]":
                found.add(int(name))
        except OSError:  # closed since it was listed: the one of the listing itself
            continue
    return found


def explain(error: ImportError) -> str:
    """Why pyverbs did not load, from the loader's own words (dl-version.c of glibc, dlopen(3))."""
    text = str(error)
    if abi := _ABI.search(text):
        return (
            f"this pyverbs is built for another rdma-core than this host has (it wants IBVERBS_PRIVATE_{abi[1]}): "
            f"pip uninstall pyverbs, apt-get install {PACKAGE}, then tools/link-pyverbs links it"
        )
    if library := _LIBRARY.search(text):
        return f"pyverbs needs {library[1]}, which is not installed: apt-get install {PACKAGE} rdma-core"
    if isinstance(error, ModuleNotFoundError):
        if error.name is not None and error.name.startswith("pyverbs."):
            return f"pyverbs is built for another Python than this one ({_python()}): {_other_python()}"
        if DISTRIBUTION.is_dir():
            return f"{PACKAGE} is installed, but not linked into {sys.prefix}: tools/link-pyverbs does it"
        return f"pyverbs is not installed: apt-get install {PACKAGE}, then tools/link-pyverbs links it"
    return f"pyverbs does not load ({text.splitlines()[0]}): apt-get install --reinstall {PACKAGE} rdma-core"


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _other_python() -> str:
    return f"make the virtual environment with the Python that {PACKAGE} is for (/usr/bin/python3)"


def _not_opened(name: str, error: Exception) -> str:
    """pyverbs' own errors carry an errno in `error_code`, or only a text."""
    code = getattr(error, "error_code", None)
    if code in (errno.EACCES, errno.EPERM):
        return f"RDMA device {name} cannot be opened: no permission for /dev/infiniband (run as root)"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "devices list" in text or "device list" in text:
        return "this host has no RDMA device (`rdma link show` lists none; ibverbs needs the module ib_uverbs)"
    return (
        f"RDMA device {name} cannot be opened ({text}): `ibv_devinfo -d {name}` should show it; it needs the module "
        "ib_uverbs and a provider (apt-get install ibverbs-providers)"
    )
