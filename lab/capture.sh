# Sourced by /init in the capture kernel. Disks: vdb (ext4) takes the dumps, vdc takes /proc/vmcore as it is.
say "capture $(uname -r) available_kib=$(meminfo MemAvailable) cpus=$(grep -c ^processor /proc/cpuinfo)"
mkdir /out
mount -t ext4 /dev/vdb /out
while read -r line; do # a command line each, which may leave a dump in /out/dump; the last one's is kept
  rm -f /out/dump
  sync
  say "run $line"
  eval "guest run $line" < /dev/null
  [ ! -f /out/dump ] || say "size $(stat -c %s /out/dump)"
done < /runs
umount /out
if [ "$RAW" = 1 ]; then
  dd if=/proc/vmcore of=/dev/vdc bs=1M 2>/dev/null && say "raw $(stat -c %s /proc/vmcore)"
fi
sync
say done
