"""What decides about moving ranks. Pure: records and statuses in, actions out; no clock, store, socket or torch."""
