"""Planned moves of running programs' queue pairs."""

from linkpass.edges.moves.edge import MoveEdge
from linkpass.edges.moves.ground import Known
from linkpass.edges.moves.undoing import KIND, Leftovers, plain, put_back, restore, target_of

__all__ = ["KIND", "Known", "Leftovers", "MoveEdge", "plain", "put_back", "restore", "target_of"]
