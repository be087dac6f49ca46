"""Every key of the configuration file with its default. `docs/linkpass.toml` explains them one by one."""

from __future__ import annotations

from typing import Literal

import msgspec

from linkpass.core.settings import Damping, Detection, Diagnosis, Limits, Probing, Stragglers, Tracing
from rdma.counters.evidence import Thresholds

DEFAULT_PATH = "/etc/linkpass/linkpass.toml"


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where names come from. All optional: without them nodes are called by their addresses."""

    file: str = ""
    """Any that `linkpass topology` reads and that tells of cables; a folder holds what nodes hear by LLDP."""
    names: dict[str, str] = {}
    """Address -> node name, for addresses that traces meet."""
    names_file: str = ""
    """A JSON object like `names`; `names` wins where both know an address."""
    lldpctl: tuple[str, ...] = ()
    """A program that prints what this host's lldpd hears, such as `lldpctl -f json0`; asked once a minute."""


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_file: str = "/etc/linkpass/key"
    """The fabric's shared secret, at least 16 bytes; surrounding white space is dropped."""


class TcpTimers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Timers of the job's own sockets, set from outside and put back when the daemon ends."""

    enabled: bool = False
    rto_min_us: int = 5000
    rto_max_ms: int = 1000


class Routes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metric: int = 76
    """Preference of our routes: must be below the metric of the routes that they lie over."""
    vrf: str = ""
    """Name of the VRF device to which the fabric's uplinks belong; empty: none, and the main table counts."""
    rto_min_ms: int | None = None
    """`rto_min` on our routes, for kernels that have no socket option for it."""


class Tunnels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entropy tunnels: rung 1 for IPv4 (`docs/tunnels.md`)."""

    enabled: bool = False
    port: int = 3787
    """UDP port at which this host takes packets out. Not VXLAN's own 4789: switches that know that one may hash what
    is inside, and a network overlay may have it."""
    vni: int = 0x4C50
    """Network identifier of this host's end; the devices that send have those that follow, which no packet carries."""
    first_source_port: int = 52000
    per_uplink: int = 8
    """With two equal ways in the fabric, eight source ports miss one of them once in 128 times."""


class Uplink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An uplink that the kernel's routes do not show."""

    name: str
    gateway4: str | None = None
    gateway6: str | None = None


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    socket: str = "/run/linkpass/control.sock"


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:9478"
    """`address:port`, IPv6 in brackets; empty: off."""


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dir: str = "/var/lib/linkpass"
    """Holds the journal of decisions and the journal of changes to be undone."""
    max_bytes: int = 8 << 20
    """The journal of decisions is rotated at this size; one older file is kept."""


class Recorder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str = ""
    """Empty: nothing is recorded."""
    max_bytes: int = 64 << 20


class Escalation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hook: tuple[str, ...] = ()
    """Program and arguments; the verdict comes as JSON on its standard input."""
    timeout_s: float = 10.0


class HealthCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody else's opinion of this host; one of the two at most."""

    exec: tuple[str, ...] = ()
    """A program: exit status 0 healthy, 1 degraded, 2 failing; its first line of output is the reason."""
    file: str = ""
    """A file that begins with `healthy`, `degraded` or `failing`; the rest of its first line is the reason."""
    interval_s: float = 30.0
    timeout_s: float = 10.0


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where evidence about this host itself comes from. Reading only; what is not there is said once."""

    kernel_log: bool = True
    """Watch /dev/kmsg for lines that tell of a failing host; from the start of the daemon on."""
    sensors: bool = True
    """Thermal zones, hwmon chips and EDAC counters."""
    nvml: bool = True
    """GPUs through NVIDIA's library, where its Python bindings are installed."""
    dcgm: str = ""
    """URL of DCGM's exporter; empty: not asked."""
    interval_s: float = 5.0
    """Between two readings: what fails slowly enough to be read fails over tens of seconds."""
    stands_s: float = 10.0
    """A value beyond its limit counts after this time: two readings in a row, so that one wrong one is nothing."""
    rests_s: float = 60.0
    """And is over after this time within it: heat comes and goes with the job's steps."""
    forget_s: float = 600.0
    """What happened once, and degrades, is forgotten after this time."""
    temperature_margin_c: float = 0.0
    """How far below a sensor's own critical temperature it counts as reached."""
    check: HealthCheck = HealthCheck()


class RdmaSteer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    live_qps: bool = False
    """In act mode, queue pairs that follow no route of ours are moved to other addresses when their uplink is to be
    left. Both hosts must allow it. Needs CAP_SYS_PTRACE; which drivers' can be moved says docs/rdma.md."""
    port: int = 3786
    """UDP port on which daemons agree on it."""
    unproven: bool = False
    """Allow, too, what an interface promises but no hardware was seen to do: the UDP source port of mlx5. By hand only
    (`linkpass lab udp-port`), the daemon does not ask for it."""
    patience_s: float = 1.0
    """A move that is not decided by then is given up, and the queue pair goes on as soon as its queue is empty. Keep it
    below what the program's own timeouts allow."""


class Rdma(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    counters: bool = True
    """Read the counters of RDMA ports once a second; nothing is changed."""
    flows: bool = True
    """Look at this host's queue pairs a few times a second: whom they talk to, and whether they advance."""
    events: bool = True
    """Hear of ports that fail and of addresses that move from the devices themselves (needs pyverbs)."""
    ethernet: bool = True
    """Read statistics of the Ethernet ports below RDMA ports and uplinks once a second; nothing is changed."""
    module_interval_s: float = 60.0
    """How often an optical module is read; 0: never."""
    evidence: Thresholds = Thresholds()
    steer: RdmaSteer = RdmaSteer()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `load` gives addresses as `ipaddress` prints them and absolute paths."""

    mode: Literal["observe", "act"] = "observe"
    host: str = ""
    """Empty: the machine's host name."""
    address: str = ""
    """The address that the job's sockets use. Empty: the preferred source of the routes to `prefixes`."""
    prefixes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    netns: tuple[str, ...] = ()
    realtime: bool = False
    rungs: tuple[Literal[1, 2], ...] = (1, 2)
    fabric: Fabric = Fabric()
    auth: Auth = Auth()
    damping: Damping = Damping()
    probing: Probing = Probing()
    tracing: Tracing = Tracing()
    detection: Detection = Detection()
    limits: Limits = Limits()
    diagnosis: Diagnosis = Diagnosis()
    stragglers: Stragglers = Stragglers()
    tcp_timers: TcpTimers = TcpTimers()
    routes: Routes = Routes()
    tunnels: Tunnels = Tunnels()
    uplinks: tuple[Uplink, ...] = ()
    control: Control = Control()
    metrics: Metrics = Metrics()
    journal: Journal = Journal()
    recorder: Recorder = Recorder()
    escalate: Escalation = Escalation()
    health: Health = Health()
    rdma: Rdma = Rdma()
