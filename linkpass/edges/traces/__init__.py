"""The trace edge: which nodes a label leads over. `edge` has the commands, `tracer` one trace; `asking`, `sending`,
`hearing` say how, `pace` and `allowance` how fast, `names` whose an address is, `telling` and `planned` what answers
show beside.
"""

from linkpass.edges.traces.edge import FlowKey, TraceEdge
from linkpass.edges.traces.planned import Plan
from linkpass.edges.traces.sending import Question

__all__ = ["FlowKey", "Plan", "Question", "TraceEdge"]
