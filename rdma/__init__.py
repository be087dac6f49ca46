"""Everything that knows RDMA: devices, ports, counters, flows. Nothing else opens its sysfs or imports pyverbs.

It hears and tells by plain values and knows neither the core nor the edges."""
