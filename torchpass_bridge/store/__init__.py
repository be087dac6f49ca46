"""The store of the job's records: NATS JetStream, asked by compare-and-set. Loads no torch."""
