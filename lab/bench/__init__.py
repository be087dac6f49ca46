"""Benches: `linkpass lab bench NAME`, one JSON shape for all."""
