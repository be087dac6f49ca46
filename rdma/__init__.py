"""Everything that knows RDMA: devices, ports, counters, flows. Nothing else opens its sysfs or imports pyverbs."""
