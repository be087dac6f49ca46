"""linkpass keeps large GPU jobs running while their network and hosts fail."""

__version__ = "0.1.0"
