"""Planned moves of running programs' queue pairs."""

from linkpass.edges.moves.edge import MoveEdge
from linkpass.edges.moves.ground import Known
from linkpass.edges.moves.undoing import KIND, put_back, restore

__all__ = ["KIND", "Known", "MoveEdge", "put_back", "restore"]
