"""`linkpass ledger`: what became of the hosts that were handed over. The code is torchpass_bridge's."""

from __future__ import annotations

from torchpass_bridge.cli.ledger import ledger_command

ledger = ledger_command("linkpass")
