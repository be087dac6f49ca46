"""What an explained capture says, as plain values. Times are seconds from the capture's first packet."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """Something that happened at a moment. `kind`: `sent again`, `out of order`, `missing`, `nak`, `cnp`, `congestion`,
    `moved`, `gave up`, `broken`, `new connection`. `flow`: index in `Report.flows`."""

    at_s: float
    kind: str
    flow: int
    says: str


class Way(msgspec.Struct, frozen=True):
    """What a fabric hashes on. `label`: None with IPv4."""

    at_s: float
    source_port: int
    label: int | None


class Pause(msgspec.Struct, frozen=True):
    """Between two requests. `waited`: whether an answer was outstanding (else the program may have had nothing to
    send); None when the other direction is not known."""

    at_s: float
    seconds: float
    waited: bool | None


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a queue pair's traffic. `qpn`: the receiver's queue pair, which every packet names;
    `sender_qpn`: the sender's, by `paired_by`; None when nothing tells. `reverse`: index of the other direction.

    `sent_again`: requests and READ responses whose number had passed here before: the first copy, or the answer to it,
    was lost beyond this point or was late. `sent_again_unseen`: sent again, while the first copy never passed here.
    `out_of_order`: behind others, and not sent again. `missing`: numbers that never passed; of those
    `missing_answered` were acknowledged, so that they arrived, and the capture missed them. `payload_bytes`: each
    number counted once. `naks`, `rnr_s`, `cnps`: what the receiver of this direction's packets is told. `ce`: packets
    with a switch's mark of congestion, `ect`: those that a switch may mark. `unchecked`: cut off before their ICRC.
    `copies`: seen again at another point of capture. `stalls`: how often a series of packets was sent again;
    `stalls_s`: from the first one of each to progress, of the longest."""

    source: str
    target: str
    qpn: int
    sender_qpn: int | None
    paired_by: str
    reverse: int | None
    transport: str
    packets: int
    first_s: float
    last_s: float
    operations: dict[str, int]
    payload_bytes: int
    repeated_bytes: int
    sent_again: int
    sent_again_unseen: int
    out_of_order: int
    missing: int
    missing_answered: int
    naks: dict[str, int]
    rnr_s: tuple[float, ...]
    cnps: int
    ce: int
    ect: int
    broken: int
    unchecked: int
    copies: int
    mtu: int | None
    ways: tuple[Way, ...]
    moves: int
    pause: Pause | None
    stalls: int
    stalls_s: tuple[float, ...]
    gave_up: bool | None
    """True: the same number again and again, then silence. None: the capture ends before that could be told."""


class Report(msgspec.Struct, frozen=True):
    """`notes`: what this capture cannot tell. `unnamed`: findings beyond those of a kind and flow that are listed."""

    flows: tuple[Flow, ...]
    findings: tuple[Finding, ...]
    packets: int
    unnamed: int
    notes: tuple[str, ...]
