"""Runs in a guest: an interpreter with this project loaded, which forks for each script that it is asked to run.

    warm_python.py SOCKET MODULE...

Under emulation a start of Python with the project takes ten seconds, a fork a tenth of one. JSON over a unix socket:

    {"argv": ["/path/tool.py", "devices"]}           -> {"rc": 0, "out": "...", "err": "..."}
    {"argv": ["-c", "print(1)"], "log": "/share/x"}  -> {"pid": 71}, which goes on
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
from typing import Any


def become(argv: list[str], out: int, err: int) -> None:
    """This process is the script from here on."""
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 1024)  # whoever asked waits until nobody has its connection
    code = 0
    try:
        if argv[0] == "-c":
            sys.argv = ["-c", *argv[2:]]
            exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(argv: list[str]) -> dict[str, Any]:
    """To its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            become(argv, out.fileno(), err.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
        return {"rc": code, "out": said[0], "err": said[1]}


def start(argv: list[str], log: str) -> dict[str, Any]:
    """In the background."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        become(argv, file, file)
    os.close(file)
    return {"pid": pid}


def main(path: str, modules: list[str]) -> None:
    faulthandler.enable()
    for name in modules:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what has been started is nobody's to wait for
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"{path}.new")
        listening.listen()
        os.rename(f"{path}.new", path)  # whoever finds it can connect
        while True:
            channel, _ = listening.accept()
            with channel, channel.makefile("rw", encoding="utf-8") as stream:
                request = json.loads(stream.readline())
                if "log" in request:
                    stream.write(json.dumps(start(request["argv"], request["log"])))
                elif not os.fork():
                    stream.write(json.dumps(run(request["argv"])))
                    stream.flush()
                    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
