"""Every knob of the core, with its unit and the reason for its default. Read from TOML by `linkpass.config`."""

from __future__ import annotations

from typing import Literal

import msgspec


class Damping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Route-flap damping after RFC 2439: a penalty per failure that decays exponentially.

    One failure (1000) is below `suppress`; two in a short time suppress; the ceiling bounds the time a healed link
    has to wait (three half-lives here). The floor must be longer than the up-phase of a flap worth catching."""

    penalty: float = 1000.0
    suppress: float = 1500.0
    reuse: float = 750.0
    ceiling: float = 6000.0
    half_life_s: float = 15.0
    observe_s: float = 1.0
    """Unbroken good evidence before `up`; doubles with each failure that follows soon, without an end."""
    observe_max_s: float = 300.0
    forget_s: float = 600.0
    """A link that stayed up this long starts again with the shortest observation."""


class Probing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_s: float = 0.010
    """Per path to a peer this host talks to now."""
    idle_interval_s: float = 1.0
    """Per path of the rotating sample of other peers."""
    sample_peers: int = 16
    sample_rotate_s: float = 10.0
    max_packets_per_s: int = 2000
    """Per host, all probes together. The intervals stretch when it would be exceeded."""
    max_link_packets_per_s: int = 1000
    protocol: Literal["tcp", "udp", "verbs"] = "tcp"
    """IP protocol of the probes: that of the data, or the fabric may send them elsewhere. `verbs`: paths are probed by
    UDP, and the RDMA devices' own queues by datagrams of RoCE beside."""
    port: int = 3785
    dscp: int = 0
    size_bytes: int = 0
    """Least size of a probe's IP payload; 0: as small as it gets."""
    large_ratio: float = 0.05
    """Of the probes of a path that is probed fast, beside the others: as large as the uplink takes, since a link may
    lose large packets alone. They count against the limits like all; 0: none."""
    verbs_interval_s: float = 0.1
    """Between two RoCE datagrams to one peer from one device."""

    @property
    def ip_protocol(self) -> Literal["tcp", "udp"]:
        """Of the probes of paths."""
        return "tcp" if self.protocol == "tcp" else "udp"


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast questions to the fabric's nodes are put. Switches answer them with their control processor, which often
    is allowed some hundred a second: what is known is looked at again slowly; only what is not known is asked at
    once."""

    packets_per_s: int = 2000
    """In the long run, all questions together."""
    burst_packets: int = 256
    """So many may go at once when nothing is known of a path yet, or it has just failed: 64 labels and 4 hops."""
    burst_packets_per_s: int = 20000
    """How fast they go."""


class Detection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sequential tests. Rates stated in `linkpass.core.detect`."""

    blackhole_losses: int = 3
    loss_ok_ratio: float = 0.001
    loss_bad_ratio: float = 0.03
    loss_threshold: float = 12.0
    """Log-likelihood to cross: a false alarm about once in e^12 (160,000) restarts of the test."""
    queueing_s: float = 0.003
    """Delay above the floor that is a queue. What a switch's buffer holds at a port of 100 Gbit/s is gone in less; a
    port that runs at a tenth of its rate, or a host that is kept from running, needs more."""
    queueing_windows: int = 4
    """Windows of 50 ms by which late ones outnumber the others."""
    silent_s: float = 0.25
    """A peer of which nothing was heard for this long is called silent."""
    escalate_s: float = 2.0
    """A silent peer whose data has stopped too, while others answer, is given up as a host after this long."""
    flowed_s: float = 60.0
    """Only a peer with which data was exchanged within this time before its silence is given up."""
    clean_s: float = 1.0
    """A lossy link has to carry probes without a loss for this long before its return is even observed."""
    slow_host_s: float = 0.03
    """A host lets probes wait so much longer than at its best, on average over a second: three probes' intervals. By
    then what it reports is older than the run of losses that makes a blackhole."""
    slow_host_ratio: float = 3.0
    """And so many times as long as the median of the other hosts: where all are late it is no host."""
    slow_host_windows: int = 10
    """Seconds in which that was so, by which they outnumber the others, before the host is called slow."""
    grace_s: float = 0.5
    """After a start nothing is judged for this long: the first probes race the other daemons' starts."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_moved_ratio: float = 0.5
    """Share of a peer's paths that soft verdicts (loss, congestion, drain, a peer's word) may take away at once."""
    reprogram_tries: int = 3
    notice_ttl_s: float = 10.0
    labels_per_peer: int = 8
    trace_pool: int = 32
    retrace_s: float = 30.0
    escalations_per_hour: int = 6
    """Hosts fail a few times a year each. More than a few at once is the fault of something that they share, and a
    wrong judge must not empty a cluster."""
    congestion_hold_s: float = 10.0
    """How long a queue has to be gone before flows that were moved away from it begin to come back; doubles with each
    relapse. A way back that brings the queue back costs a job about a second."""


class Diagnosis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Naming of what fails, beside moving away from it. Needs numpy."""

    enabled: bool = False
    share: bool = True
    """Tell peers what was named, and take what they name for a hint: it breaks ties, it accuses and moves nothing."""
    flows: bool = True
    """Take what the job's flows (TCP, soft-RoCE) send again for evidence beside probes. While they do, one packet in
    some is looked at as it leaves, to learn the flow's path."""
    trace_flows: int = 16
    """So many flows an uplink and second whose label is no probed one, and which send something again, are traced by
    copies of their headers, a packet for each hop; 0: none."""


class Stragglers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Naming the rank that all others wait for (`linkpass.core.pace`, `linkpass.core.stragglers`). Nothing is moved."""

    enabled: bool = False
    """Off: looking costs up to `cpu_ratio` of a core while a job runs, and small packets to each peer."""
    interval_s: float = 0.010
    """Between two looks at the job's sockets, if `cpu_ratio` allows; silences shorter than two looks are not seen."""
    cpu_ratio: float = 0.01
    """Share of a core that looking may cost; the interval stretches when it would cost more."""
    late_ratio: float = 0.2
    """Share of a step that others have to wait for a rank before the step counts against it. Published studies call a
    job slowed from a tenth on; below a fifth a host with full cores is late now and then without being slow."""
    least_s: float = 0.02
    """The same in time, at least."""
    threshold: float = 13.0
    """Log-likelihood to cross: about one false crossing in e^13 restarts of the test on a rank that is late in a
    quarter of its steps; two hosts have to cross it."""


class CoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    """This host's name, as the topology file and the journal call it."""
    address: str
    """The address that the job's sockets use (often a loopback address)."""
    mode: Literal["observe", "act"] = "observe"
    rungs: tuple[int, ...] = (1, 2)
    operators: tuple[str, ...] = ()
    """Addresses of the hosts whose drains count here for any link, not only for their own."""
    live_qps: bool = False
    """Queue pairs of running programs may be moved to other addresses (`rdma.steer.live_qps`)."""
    damping: Damping = Damping()
    probing: Probing = Probing()
    tracing: Tracing = Tracing()
    detection: Detection = Detection()
    limits: Limits = Limits()
    diagnosis: Diagnosis = Diagnosis()
    stragglers: Stragglers = Stragglers()
