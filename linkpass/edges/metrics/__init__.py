"""Prometheus metrics of the daemon."""

from linkpass.edges.metrics.edge import CONTENT_TYPE, MetricsEdge, MetricsError, exposition

__all__ = ["CONTENT_TYPE", "MetricsEdge", "MetricsError", "exposition"]
