"""Bytes to values and back, nothing else: no sockets, no clock."""
