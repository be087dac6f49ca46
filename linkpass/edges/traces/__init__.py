"""The trace edge: which nodes a label leads over. `edge` says what is asked and what it means, `asking` how."""

from linkpass.edges.traces.asking import Question
from linkpass.edges.traces.edge import FlowKey, TraceEdge

__all__ = ["FlowKey", "Question", "TraceEdge"]
