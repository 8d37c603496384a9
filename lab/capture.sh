# Sourced by /init in the capture kernel. Disks: vdb (ext4) takes the dump, vdc takes /proc/vmcore as it is.
say "capture $(uname -r) available_kib=$(meminfo MemAvailable)"
if [ -n "$PROGRAM" ]; then
  mkdir /out
  mount -t ext4 /dev/vdb /out
  guest run "$PROGRAM" $DUMP_ARGS /proc/vmcore /out/dump
  umount /out
fi
if [ "$RAW" = 1 ]; then
  dd if=/proc/vmcore of=/dev/vdc bs=1M 2>/dev/null && say "raw $(stat -c %s /proc/vmcore)"
fi
sync
say done
