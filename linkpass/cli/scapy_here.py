"""scapy for the commands that need it: it comes with the `lab` extra, not with the daemon."""

from __future__ import annotations

from linkpass.cli.common import TroubleError


def need_scapy(what: str = "capture") -> None:
    """TroubleError when scapy is not installed, for `what` needs it."""
    try:
        import_scapy_quietly()
    except ImportError:
        raise TroubleError(f"{what} needs scapy, which is not installed", "pip install 'linkpass[lab]'") from None


def import_scapy_quietly() -> None:
    """scapy warns on stderr about this machine's own routes when it loads; they are of no interest here."""
    import logging

    logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
    import linkpass.dissect  # noqa: F401
