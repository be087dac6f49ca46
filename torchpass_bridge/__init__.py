"""Moving ranks to spares when a host fails: hears from the daemon by message only, installs without it."""
