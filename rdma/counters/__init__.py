"""Port counters: what each file means (`table`), reading them (`reading`), differences over time (`deltas`), and what
they say about congestion and loss (`evidence`)."""
