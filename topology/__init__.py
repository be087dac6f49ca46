"""The fabric as a graph: a typed model and the text formats it is read from. Knows nothing of health or time."""
