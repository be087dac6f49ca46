"""What Ethernet ports tell beside RDMA's counters: the kernel's standard statistics and the drivers' own (`table`), how
they are asked (`genl`, `ioctl`) and read over time (`reading`), optical modules (`module`), and what all of it says
(`evidence`)."""
