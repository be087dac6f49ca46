"""Network namespaces: build a fabric from a topology file, break it, take it away.

`NetnsLab` is the whole of it; the other modules are its parts.
"""
