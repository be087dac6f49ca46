#!/bin/busybox sh
# The guest's first process: load what reaches this machine's root file system, put a RAM disk over it, go there.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in /m/*.ko; do $B insmod "$module" || $B echo "insmod $module failed" >/dev/console; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /lower || $B echo "no root" >/dev/console
$B mount -t tmpfs tmpfs /rw
$B mkdir /rw/upper /rw/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new
$B mount -t proc proc /new/proc
$B mount -t sysfs sys /new/sys
$B mount -t devtmpfs dev /new/dev
$B mkdir -p /new/dev/pts /new/dev/shm /new/share
$B mount -t devpts devpts /new/dev/pts
for folder in /new/dev/shm /new/run; do $B mount -t tmpfs tmpfs $folder; done
[ "@VERSION@" = "@MODULES@" ] || { $B mkdir -p /new/lib/modules; $B ln -s @MODULES@ /new/lib/modules/@VERSION@; }
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /new/share
$B umount /proc
$B umount /sys
exec $B switch_root /new /bin/sh /share/start.sh
