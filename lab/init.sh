#!/bin/busybox sh
# /init of both kernels: the one that will crash, and the capture kernel that finds its memory in /proc/vmcore.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
echo 1 > /proc/sys/kernel/printk # the host reads our lines on this console
say() { echo "LAB $*"; }
meminfo() { sed -n "s/^$1: *\([0-9]*\) kB/\1/p" /proc/meminfo; }

. /lab.conf
while read -r module; do
  [ $module = virtio_balloon.ko ] && [ -e /proc/vmcore ] && continue # it would take from the capture kernel what it took before
  insmod "/modules/$module" || say "note insmod $module failed"
done < /modules/order
tries=0
while [ ! -b /dev/vdc ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done

if [ -e /proc/vmcore ]; then . /capture.sh; else . /workload.sh; fi
sync
poweroff -f
