"""Runs in a guest and does what it is asked over a virtio serial port: JSON lines, answers in any order.

    {"id": 1, "argv": ["ip", "link"], "timeout_s": 5.0}    -> {"id": 1, "rc": 0, "out": "...", "err": "..."}
    {"id": 2, "start": ["sleep", "9"], "log": "/share/x"}  -> {"id": 2, "pid": 71}
    {"id": 3, "signal": 9, "pid": 71}                      -> {"id": 3, "rc": 0}
    {"id": 4, "wait": 71, "timeout_s": 5.0}                -> {"id": 4, "rc": -9}
    {"id": 5, "clock": true}                               -> {"id": 5, "monotonic_s": 12.5}
    {"id": 6, "unix": "/run/x", "send": "GET ..."}         -> {"id": 6, "out": "HTTP/1.1 200 ..."}
    what went wrong                                        -> {"id": 7, "error": "..."}

Needs the standard library alone and is started without site-packages: under emulation each import counts."""

import glob
import json
import os
import socket
import subprocess
import threading
import time
from typing import Any

PORT = "linkpass.agent"


def find_port() -> str:
    for _ in range(200):
        for path in glob.glob("/sys/class/virtio-ports/*/name"):
            with open(path) as file:
                if file.read().strip() == PORT:
                    return "/dev/" + path.split("/")[-2]
        time.sleep(0.02)
    raise SystemExit("no port of the agent's name")


def ask_socket(path: str, text: str, timeout_s: float) -> str:
    """Say something to a unix socket; all that it answers until it closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout_s)
        channel.connect(path)
        channel.sendall(text.encode())
        answer = b""
        while data := channel.recv(65536):
            answer += data
    return answer.decode(errors="replace")


class Agent:
    def __init__(self, port: str) -> None:
        self.fd = os.open(port, os.O_RDWR)
        self.lock = threading.Lock()
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    def tell(self, **answer: Any) -> None:
        data = (json.dumps(answer) + "\n").encode()
        with self.lock:
            while data:
                data = data[os.write(self.fd, data) :]

    def serve(self) -> None:
        rest = b""
        while True:
            data = os.read(self.fd, 65536)
            if not data:  # nobody is connected on the other side
                time.sleep(0.02)
                continue
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                threading.Thread(target=self.work, args=(json.loads(line),), daemon=True).start()

    def work(self, request: dict[str, Any]) -> None:
        try:
            answer = self.answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.tell(id=request["id"], **answer)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        env = {**os.environ, **request.get("env", {})}
        if "argv" in request:
            process = subprocess.Popen(
                request["argv"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=env,
                cwd=request.get("cwd", "/"),
            )
            try:
                out, err = process.communicate(request.get("input", "").encode(), timeout=request["timeout_s"])
                code = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                out, err = process.communicate()
                code = 124
            return {"rc": code, "out": out.decode(errors="replace"), "err": err.decode(errors="replace")}
        if "start" in request:
            with open(request["log"], "ab") as log:
                process = subprocess.Popen(
                    request["start"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=env,
                    cwd=request.get("cwd", "/"),
                )
            self.started[process.pid] = process
            return {"pid": process.pid}
        if "wait" in request:
            try:
                return {"rc": self.started[request["wait"]].wait(request["timeout_s"])}
            except subprocess.TimeoutExpired:
                return {"rc": None}
        if "signal" in request:
            os.kill(request["pid"], request["signal"])
            return {"rc": 0}
        if "unix" in request:
            return {"out": ask_socket(request["unix"], request["send"], request.get("timeout_s", 10.0))}
        if "clock" in request:
            return {"monotonic_s": time.monotonic()}
        raise ValueError(f"nothing to do in {sorted(request)}")


if __name__ == "__main__":
    Agent(find_port()).serve()
