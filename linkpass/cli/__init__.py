"""The command line. Commands import what they need when they run: `linkpass --help` loads click alone."""

from linkpass.cli.group import cli, main

__all__ = ["cli", "main"]
