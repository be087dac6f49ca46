"""Hosts as QEMU guests with a kernel of their own: the only way to RDMA devices where the machine's kernel has none.

Plain emulation (no KVM is needed), Debian's kernel, soft-RoCE, this machine's root file system read-only below."""
