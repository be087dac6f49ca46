#!/bin/sh
# Runs on the guest's root file system: devices, then the agent, which stays.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t configfs none /sys/kernel/config 2>/dev/null
mkdir -p /run/netns
hostname "$(cat /share/hostname)"
modprobe -a $(cat /share/modules) >/dev/console 2>&1
ip link set lo up
exec "$(cat /share/python)" -S -E /share/agent.py </dev/null >/dev/console 2>&1
