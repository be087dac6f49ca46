"""The trace edge: which nodes a label leads over. `edge` says what is asked and what it means, `asking` and `hearing`
how, `pace` and `allowance` how fast, `telling` and `planned` what the answers show beside the hops."""

from linkpass.edges.traces.asking import Question
from linkpass.edges.traces.edge import FlowKey, TraceEdge
from linkpass.edges.traces.planned import Plan

__all__ = ["FlowKey", "Plan", "Question", "TraceEdge"]
