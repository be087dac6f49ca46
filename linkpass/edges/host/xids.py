"""NVIDIA's Xid numbers that say more than "a program did something wrong": what each asks for.

From NVIDIA's public "XID Errors" catalogue (docs.nvidia.com/deploy/xid-errors): its immediate actions RESET_GPU,
RESTART_BM, CONTACT_SUPPORT and the like make an accelerator fatal here, since the rank on it cannot go on; what costs
only the program that ran, or waits for the next reset, degrades. A number that is not here is information: most are
errors of programs. 154 carries the driver's own conclusion in its text, and that counts.
"""

from __future__ import annotations

import re
from typing import Final

from linkpass.core.events import Severity

XIDS: Final[dict[int, tuple[Severity, str]]] = {
    46: ("fatal", "the GPU has stopped processing; needs a reset"),
    48: ("fatal", "uncorrectable memory error (double bit); needs a reset"),
    61: ("degraded", "warning of the internal microcontroller"),
    62: ("fatal", "the internal microcontroller has halted; needs a reset"),
    63: ("degraded", "a memory page or row is put out of use; takes effect with the next reset"),
    64: ("fatal", "a memory page or row could not be put out of use; needs a reset, perhaps a replacement"),
    74: ("fatal", "NVLink error; needs a reset, and a look at the link should it return"),
    79: ("fatal", "the GPU has fallen off the bus; needs a restart of the host, perhaps a replacement"),
    92: ("degraded", "many corrected memory errors"),
    94: ("degraded", "uncorrectable memory error, contained: only the program that met it has ended"),
    95: ("fatal", "uncorrectable memory error, not contained; needs a reset"),
    109: ("degraded", "switching between programs timed out"),
    119: ("fatal", "the GPU's system processor (GSP) does not answer; needs a reset"),
    120: ("fatal", "error of the GPU's system processor (GSP); needs a reset"),
    121: ("degraded", "corrected error of the link between chips (C2C)"),
    136: ("fatal", "NVLink training failed; needs a reset"),
    140: ("fatal", "uncorrectable memory error that could not be recovered; needs a reset"),
    143: ("fatal", "the GPU could not be initialised"),
    155: ("fatal", "an NVLink went down; needs a reset"),
    156: ("degraded", "a resource of the GPU is retired; takes effect with the next reset"),
    157: ("fatal", "a resource of the GPU could not be retired; needs a reset"),
}
RECOVERY: Final = 154
_RECOVERY: Final = re.compile(r"to 0x[0-9a-f]+ \(([^)]*)\)", re.I)


def meaning(number: int, text: str = "") -> tuple[Severity, str]:
    """Severity and words; `text`: what the driver has written after the number."""
    if number == RECOVERY and (found := _RECOVERY.search(text)):
        action = found[1]
        if "none" in action.lower():
            return "info", "the driver asks for no recovery any more"
        return ("degraded" if "p2p" in action.lower() else "fatal"), f"the driver asks for: {action}"
    return XIDS.get(number, ("info", "an error of the program, most likely"))
