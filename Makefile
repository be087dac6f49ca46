# linkpass: `make demo` shows it, `make test` proves it. Every target is idempotent from a bare Debian machine.
SHELL := /bin/bash
