"""One job under one schedule of faults, kept alive in four ways: what `linkpass lab bench goodput` compares."""
