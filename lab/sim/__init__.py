"""A fabric in numbers: paths by ECMP, losses drawn by window, faults with known truth. No kernel, no packets."""
