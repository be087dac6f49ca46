"""Hosts: whether one fails as a whole, by its silence, by its kernel's answers, by its own word, by what its sources
say.

Nothing here moves traffic or blames a link. What is decided is one `Escalate` and its evidence, or a reason why not.
The rules, and what two daemons that disagree do, are in docs/hosts.md."""

from linkpass.core.hosts.asking import ask_who_is_known, on_answered, on_ask_failed, on_traced
from linkpass.core.hosts.escalation import on_escalated
from linkpass.core.hosts.judging import deadlines, follow, on_switch, on_verdict, tick, witnesses
from linkpass.core.hosts.own import clear, on_evidence, on_late
from linkpass.core.hosts.silence import (
    on_answer,
    on_back,
    on_data,
    on_filtered,
    on_flow_stands,
    on_goodbye,
    on_silent,
)
from linkpass.core.hosts.slow import on_delays
from linkpass.core.hosts.words import WORDS, on_word

__all__ = [
    "WORDS", "ask_who_is_known", "clear", "deadlines", "follow", "on_answer", "on_answered", "on_ask_failed",
    "on_back", "on_data", "on_delays", "on_escalated", "on_evidence", "on_filtered", "on_flow_stands", "on_goodbye",
    "on_late", "on_silent", "on_switch", "on_traced", "on_verdict", "on_word", "tick", "witnesses",
]  # fmt: skip
