"""The daemon's composition root: `main` runs it, `cleanup` takes away what a killed one has left.

`agent` puts together one network namespace (core, driver, edges), `process` the process around it, `picture` what
it shows."""

from linkpass.app.process import cleanup, main

__all__ = ["cleanup", "main"]
