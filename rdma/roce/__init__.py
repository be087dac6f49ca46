"""RoCEv2 on the wire: packets as values, and what a capture of them tells of each queue pair. Pure: bytes and values.

Nothing here reads a file or knows a tool: `linkpass capture explain` brings the packets.
"""
