"""Logging for people at a terminal, and as JSON lines for everything else. Called once, by the app."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def set_up(*, level: str = "info", stream: TextIO | None = None, console: bool | None = None) -> None:
    """Set up structlog, and the standard library's loggers (aiohttp, asyncio) through the same renderer.

    `console` None: colours on a terminal, JSON otherwise. Raises ValueError for an unknown level."""
    stream = sys.stderr if stream is None else stream
    console = stream.isatty() if console is None else console
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r}: expected debug, info, warning or error")
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))
