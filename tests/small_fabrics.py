"""Fabrics of two hosts for tests with guests."""

RAILS = """
name: rails
topology:
  kinds: {linux: {image: debian}}
  nodes:
    host1: {kind: linux, labels: {linkpass.role: host}}
    host2: {kind: linux, labels: {linkpass.role: host}}
    leaf1: {kind: linux, labels: {linkpass.role: leaf}}
    leaf2: {kind: linux, labels: {linkpass.role: leaf}}
  links:
    - endpoints: ["host1:eth1", "leaf1:eth1"]
    - endpoints: ["host1:eth2", "leaf2:eth1"]
    - endpoints: ["host2:eth1", "leaf1:eth2"]
    - endpoints: ["host2:eth2", "leaf2:eth2"]
"""
"""Two rails that do not meet."""

SPINES = """
name: spines
topology:
  kinds: {linux: {image: debian}}
  nodes:
    host1: {kind: linux, labels: {linkpass.role: host}}
    host2: {kind: linux, labels: {linkpass.role: host}}
    leaf1: {kind: linux, labels: {linkpass.role: leaf}}
    leaf2: {kind: linux, labels: {linkpass.role: leaf}}
    spine1: {kind: linux, labels: {linkpass.role: spine}}
    spine2: {kind: linux, labels: {linkpass.role: spine}}
  links:
    - endpoints: ["host1:eth1", "leaf1:eth1"]
    - endpoints: ["host2:eth1", "leaf2:eth1"]
    - endpoints: ["leaf1:eth2", "spine1:eth1"]
    - endpoints: ["leaf1:eth3", "spine2:eth1"]
    - endpoints: ["leaf2:eth2", "spine1:eth2"]
    - endpoints: ["leaf2:eth3", "spine2:eth2"]
"""
"""One uplink a host; two ways beyond it."""
