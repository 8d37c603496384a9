# Sourced by /init in the kernel that will crash: every class of page, in shares of the memory there is.
# Disks: vda (ext4) is scratch space. FILL is the percentage of the available memory to use.
say "boot $(uname -r) available_kib=$(meminfo MemAvailable)"
[ "$(cat /sys/kernel/kexec_crash_size)" != 0 ] || { say "retry no room for the crashkernel reservation"; poweroff -f; }
# As distributions call it; the balloon is kept out where it is no module (see /init).
CAPTURE="console=ttyS0 panic=-1 nr_cpus=$CAPTURE_CPUS reset_devices irqpoll initcall_blacklist=virtio_balloon_driver_init"
guest load-capture-kernel /boot/vmlinuz /boot/initramfs "$CAPTURE" ||
  { say "fail the capture kernel cannot be loaded"; poweroff -f; }
rm -r /boot
echo 1 > /proc/sys/vm/overcommit_memory
if [ "$LIGHT" = 1 ]; then
  # For a core that is to be kept: content that compresses well, and nothing in free memory but the workload's.
  export LIGHT
  rm -r /modules
  echo 0 0 0 0 > /proc/sys/vm/lowmem_reserve_ratio # what the loader left is in the DMA zone
  echo 128 > /proc/sys/vm/min_free_kbytes
  guest anon zero "$(meminfo MemTotal)" freed # until the OOM killer ends it
fi

BUDGET=$(($(meminfo MemAvailable) * FILL / 100))
share() { echo $((BUDGET * $1 / 1000)); } # thousandths of the budget, in KiB; also for counts that grow with it

echo 0 > /proc/sys/fs/pipe-user-pages-soft
echo 60 > /proc/sys/vm/dirty_ratio
echo 50 > /proc/sys/vm/dirty_background_ratio
echo 360000 > /proc/sys/vm/dirty_expire_centisecs
echo 360000 > /proc/sys/vm/dirty_writeback_centisecs
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
for size in 32 64; do # large folios smaller than 2 MiB, since 6.8
  echo always > /sys/kernel/mm/transparent_hugepage/hugepages-${size}kB/enabled
done 2>/dev/null
echo $(($(share 60) / 2048 + 2)) > /proc/sys/vm/nr_hugepages
mkdir -p /scratch /shm
mount -t ext4 /dev/vda /scratch
mount -t tmpfs -o size=90%,nr_inodes=4000000 shm /shm

# Page cache: read back without buffers, written and clean, written and still dirty, mapped.
guest write /scratch/read "$(share 150)" mix
guest write /scratch/mapped "$(share 25)" text
sync
echo 1 > /proc/sys/vm/drop_caches
cat /scratch/read > /dev/null
guest map /scratch/mapped
guest write /scratch/clean "$(share 30)" heap
sync
guest write /scratch/dirty "$(share 35)" text
guest write /shm/text "$(share 30)" text
guest write /shm/random "$(share 15)" random

# Anonymous memory.
guest anon text "$(share 120)" holes
guest anon heap "$(share 100)" cow
guest anon random "$(share 40)"
guest anon zero "$(share 30)" small-pages
guest anon text "$(share 30)" huge
guest anon heap "$(share 20)" huge split
guest anon mix "$(share 20)" shared
guest anon text "$(share 10)" lazily-freed
guest anon heap "$(share 30)" hugetlb
dd if=/dev/zero of=/scratch/swap bs=1k count=$(($(share 20) + 128)) 2>/dev/null
mkswap /scratch/swap > /dev/null && swapon /scratch/swap && guest anon mix "$(share 20)" paged-out
guest anon same "$(share 10)" mergeable
echo 1 > /sys/kernel/mm/ksm/run

# Kernel memory: slab, vmalloc, pipe and socket buffers, page tables, stacks.
guest files /shm/many "$(share 40)" 0
guest files /scratch/many "$(share 10)" 900
guest lookups /shm/none "$(share 60)"
guest bpf-array "$(share 60)"
guest bpf-hash "$(share 100)"
guest pipes "$(share 40)"
guest sockets "$(share 25)"
guest page-tables "$(share 15)"
guest processes $((8 + $(share 1)))
guest poison 4

BALLOON=$(($(share 40) / 1024 + 1)) # MiB
say "inflate $BALLOON"
tries=0
while [ "$(sed -n 's/balloon_inflate //p' /proc/vmstat)" -lt $((BALLOON * 256)) ] && [ $tries -lt 50 ]; do
  sleep 0.2
  tries=$((tries + 1))
done

# Last, so that nothing takes it again: memory given back with its old content.
guest anon mix "$(share 100)" freed

grep -E 'Mem|Cached|Dirty|Anon|Shmem|Slab|Page|Huge|Vmalloc|Stack|Swap|Corrupt' /proc/meminfo
say ready
echo 1 > /proc/sys/kernel/sysrq
# On the processor the machine was started with: another one, as the capture kernel's first, could not start this one again.
taskset 1 sh -c "echo c > /proc/sysrq-trigger"
