"""What is wrong in an InfiniBand subnet, found in what its tools have printed: links, ways, counters. Pure.

`topology.sources` reads the texts and knows nothing of health; what a port's counters mean is `rdma.counters`' to say.
"""
