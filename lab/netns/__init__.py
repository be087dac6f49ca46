"""Network namespaces: build a fabric from a topology file, break it, take it away."""
