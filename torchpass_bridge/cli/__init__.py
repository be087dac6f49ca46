"""The console script `torchpass`. Commands import what they need when they run: its help loads click alone."""

from torchpass_bridge.cli.group import cli, main

__all__ = ["cli", "main"]
