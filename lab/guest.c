// What the lab's guest needs beyond busybox: one command for each class of page, the loading of the capture kernel, and the
// measuring of a program. Static, without dependencies. A command that must keep its memory returns once the memory is
// filled and leaves a process behind that holds it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, KIB = 1 << 10, MIB = 1 << 20, HUGE = 2 * MIB };

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21 // Linux 5.4
#endif
#define KEXEC_FILE_ON_CRASH 2 // uapi/linux/kexec.h

static int fail(const char *what) {
  printf("LAB note %s: %s\n", what, strerror(errno));
  return 1;
}

// ---- content ------------------------------------------------------------------------------------------------------------

static uint64_t seed;

static uint64_t rnd(void) { // xorshift64
  seed ^= seed << 13;
  seed ^= seed >> 7;
  return seed ^= seed << 17;
}

static const char *WORDS[] = {
    "kernel", "memory", "page",  "error",  "the",   "of",    "GET /index.html", "HTTP/1.1 200", "from", "192.168.", "session",
    "opened", "for",    "root",  "systemd[1]:", "Started", "sshd[", "INFO", "WARN", "id=", "{\"name\":\"", "\",\"value\":", "},",
    "null",   "level=", "inode", "write",  "is",    "failed", "retry", "\n"};
enum { NWORDS = sizeof WORDS / sizeof *WORDS };

static void fill_words(char *p, size_t n) {
  for (size_t i = 0; i < n;) {
    char word[32];
    uint64_t r = rnd();
    size_t len = r >> 61 ? (size_t)snprintf(word, sizeof word, "%s ", WORDS[r % NWORDS])
                         : (size_t)snprintf(word, sizeof word, "%u ", (unsigned)r);
    if (len > n - i) len = n - i;
    memcpy(p + i, word, len);
    i += len;
  }
}

static void fill_text(char *p, size_t n) { // pieces of one text, for speed
  static char text[MIB];
  if (getenv("LIGHT")) return (void)memset(p, 'a' + rnd() % 26, n);
  if (!*text) fill_words(text, sizeof text);
  for (size_t i = 0; i < n;) {
    size_t len = 600 + rnd() % 3000;
    if (len > n - i) len = n - i;
    memcpy(p + i, text + rnd() % (sizeof text - 3600), len);
    i += len;
  }
}

static void fill_random(char *p, size_t n) {
  for (size_t i = 0; i + 8 <= n; i += 8) *(uint64_t *)(p + i) = rnd();
}

static void fill_heap_page(char *p, uint64_t used) { // pointers, small numbers, short strings; then zeros
  uint64_t *q = (uint64_t *)p;
  for (uint64_t i = 0; i < used; i++) {
    uint64_t r = rnd();
    switch (r & 7) {
    case 0: case 1: q[i] = 0x7f3a00000000 | (r >> 8 & 0xfffffff0); break;
    case 2: q[i] = 0x55d4c0000000 | (r >> 8 & 0xfffff8); break;
    case 3: q[i] = r >> 8 & 0xff; break;
    case 4: q[i] = r; break;
    case 5: q[i] = 0; break;
    default: strncpy((char *)(q + i), WORDS[(r >> 8) % NWORDS], 8);
    }
  }
}

static void fill(char *p, size_t n, const char *kind) {
  if (getenv("LIGHT") && strcmp(kind, "zero")) kind = "light";
  if (!strcmp(kind, "random")) return fill_random(p, n);
  if (!strcmp(kind, "text")) return fill_text(p, n);
  for (size_t o = 0; o + PAGE <= n; o += PAGE) {
    if (!strcmp(kind, "zero")) *(volatile char *)(p + o) = 0;
    else if (!strcmp(kind, "same")) memset(p + o, 0xa0 + (o / PAGE & 3), PAGE);
    else if (!strcmp(kind, "heap")) fill_heap_page(p + o, 64 + rnd() % 440);
    else if (!strcmp(kind, "light")) fill_heap_page(p + o, 4 + rnd() % 8);
    else switch (rnd() & 7) { // mix
      case 0: fill_random(p + o, PAGE); break;
      case 1: *(volatile char *)(p + o) = 0; break;
      case 2: memset(p + o, 0x5a, PAGE); break;
      case 3: case 4: fill_text(p + o, PAGE); break;
      default: fill_heap_page(p + o, 64 + rnd() % 440);
    }
  }
}

// ---- holding memory -----------------------------------------------------------------------------------------------------

static int filled = -1; // written to when the memory is filled: lets the foreground process go

static void to_background(const char *name) {
  int p[2];
  if (pipe(p)) exit(fail("pipe"));
  pid_t child = fork();
  if (child < 0) exit(fail("fork"));
  if (child) {
    char c;
    close(p[1]);
    exit(read(p[0], &c, 1) == 1 ? 0 : 1);
  }
  close(p[0]);
  filled = p[1];
  setsid();
  prctl(PR_SET_NAME, name);
}

static void hold(void) {
  if (filled >= 0 && write(filled, "x", 1) == 1) close(filled);
  for (;;) pause();
}

static char *map(size_t n, int flags) {
  char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
  if (p == MAP_FAILED) exit(fail("mmap"));
  return p;
}

static int has(char **options, const char *name) {
  for (; *options; options++)
    if (!strcmp(*options, name)) return 1;
  return 0;
}

static size_t kib(const char *text) { return strtoul(text, NULL, 0) * KIB / PAGE * PAGE; }

static int anon(char **a) { // KIND KIB [OPTION...]
  const char *kind = a[0];
  size_t n = kib(a[1]);
  char **o = a + 2;
  int freed = has(o, "freed"), hugetlb = has(o, "hugetlb");
  if (!freed) to_background(kind);
  if (hugetlb || has(o, "huge")) n = (n + HUGE - 1) / HUGE * HUGE;
  char *p = map(n + (hugetlb ? 0 : HUGE), (has(o, "shared") ? MAP_SHARED : MAP_PRIVATE) | (hugetlb ? MAP_HUGETLB : 0));
  if (!hugetlb) p = (char *)(((uintptr_t)p + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
  if (has(o, "huge")) madvise(p, n, MADV_HUGEPAGE);
  if (has(o, "small-pages")) madvise(p, n, MADV_NOHUGEPAGE);
  fill(p, n, kind);
  if (has(o, "mergeable") && madvise(p, n, MADV_MERGEABLE)) fail("MADV_MERGEABLE");
  if (has(o, "lazily-freed") && madvise(p, n, MADV_FREE)) fail("MADV_FREE");
  if (has(o, "paged-out") && madvise(p, n, MADV_PAGEOUT)) fail("MADV_PAGEOUT");
  if (has(o, "paged-out")) // half of it comes back: pages that are in the swap cache too
    for (size_t i = 0; i < n / 2; i += PAGE) (void)*(volatile char *)(p + i);
  if (has(o, "holes"))
    for (size_t i = 0; i < n; i += 3 * PAGE) madvise(p + i, PAGE, MADV_DONTNEED);
  if (has(o, "split"))
    for (size_t i = 0; i < n; i += HUGE) munmap(p + i + MIB, 64 * PAGE);
  if (has(o, "cow") && fork() == 0) {
    for (size_t i = 0; i < n; i += 7 * PAGE) p[i] = 1;
    filled = -1;
    hold();
  }
  if (freed) return 0;
  hold();
  return 0;
}

static int page_tables(char **a) { // KIB: one page of page table for each 2 MiB of address space touched
  size_t tables = kib(a[0]) / PAGE;
  to_background("page-tables");
  char *p = map(tables * HUGE, MAP_PRIVATE | MAP_NORESERVE);
  madvise(p, tables * HUGE, MADV_NOHUGEPAGE);
  for (size_t i = 0; i < tables; i++) // reading maps the shared zero page
    for (int j = 0; j < 64; j++) (void)*(volatile char *)(p + i * HUGE + PAGE * ((i + 5 * j) % 512));
  hold();
  return 0;
}

static int processes(char **a) { // COUNT
  to_background("processes");
  for (long i = strtol(a[0], NULL, 0); i > 0; i--) {
    if (fork()) continue;
    prctl(PR_SET_NAME, "worker");
    fill(map(64 * KIB, MAP_PRIVATE), 64 * KIB, "heap");
    filled = -1;
    hold();
  }
  usleep(300000); // the last ones fill theirs
  hold();
  return 0;
}

static void survive(int signal) { (void)signal; }

static int poison(char **a) { // COUNT: needs CONFIG_MEMORY_FAILURE
  long count = strtol(a[0], NULL, 0);
  to_background("poison");
  signal(SIGBUS, survive);
  char *p = map(4 * MIB, MAP_PRIVATE);
  madvise(p, 4 * MIB, MADV_NOHUGEPAGE);
  fill(p, 4 * MIB, "text");
  for (long i = 0; i < count; i++)
    if (madvise(p + i * 3 * PAGE, PAGE, MADV_HWPOISON)) {
      fail("no poisoned pages");
      break;
    }
  hold();
  return 0;
}

// ---- files --------------------------------------------------------------------------------------------------------------

static int write_file(char **a) { // FILE KIB KIND
  static char data[64 * KIB];
  int fd = open(a[0], O_CREAT | O_RDWR | O_TRUNC, 0644);
  if (fd < 0) return fail(a[0]);
  for (size_t left = kib(a[1]); left > 0;) {
    size_t n = left < sizeof data ? left : sizeof data;
    fill(data, n, a[2]);
    if (write(fd, data, n) != (ssize_t)n) return fail(a[0]);
    left -= n;
  }
  return 0;
}

static int map_file(char **a) { // FILE
  struct stat s;
  to_background("map");
  int fd = open(a[0], O_RDONLY);
  if (fd < 0 || fstat(fd, &s)) exit(fail(a[0]));
  char *p = mmap(NULL, s.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) exit(fail("mmap"));
  for (off_t i = 0; i < s.st_size; i += PAGE) (void)*(volatile char *)(p + i);
  hold();
  return 0;
}

static int files(char **a) { // DIR COUNT BYTES: inodes and dentries, every fifth name too long for the dentry itself
  long count = strtol(a[1], NULL, 0), bytes = strtol(a[2], NULL, 0);
  char name[256], *text = malloc(bytes + 1);
  fill_text(text, bytes);
  mkdir(a[0], 0755);
  for (long i = 0; i < count; i++) {
    snprintf(name, sizeof name, "%s/%06ld%s", a[0], i, i % 5 ? "" : "-a-name-that-does-not-fit-into-the-dentry-itself");
    int fd = open(name, O_CREAT | O_WRONLY, 0644);
    if (fd < 0 || write(fd, text, bytes) != bytes) return fail(name);
    close(fd);
  }
  return 0;
}

static int lookups(char **a) { // PREFIX COUNT: negative dentries
  char name[256];
  struct stat s;
  for (long i = strtol(a[1], NULL, 0); i > 0; i--) {
    snprintf(name, sizeof name, "%s-%ld", a[0], i);
    stat(name, &s);
  }
  return 0;
}

// ---- kernel memory that holds user data ---------------------------------------------------------------------------------

static int pipes(char **a) { // KIB
  static char data[64 * KIB];
  to_background("pipes");
  for (size_t i = kib(a[0]) / sizeof data + 1; i > 0; i--) {
    int p[2];
    fill(data, sizeof data, "mix");
    if (pipe2(p, O_NONBLOCK) || write(p[1], data, sizeof data) < 0) {
      fail("pipes");
      break;
    }
  }
  hold();
  return 0;
}

static int sockets(char **a) { // KIB
  static char data[8 * KIB];
  to_background("sockets");
  for (long left = kib(a[0]); left > 0;) {
    int s[2];
    long before = left;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, s)) break;
    for (;;) {
      size_t n = 200 + rnd() % (sizeof data - 200);
      fill(data, (n + PAGE - 1) / PAGE * PAGE, "text");
      if (send(s[0], data, n, 0) < 0) break;
      left -= n;
    }
    if (left == before) break;
  }
  hold();
  return 0;
}

static int bpf(int command, union bpf_attr *attr) { return syscall(SYS_bpf, command, attr, sizeof *attr); }

static int bpf_array(char **a) { // KIB: one vmalloc area
  size_t n = kib(a[0]) + PAGE;
  union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = PAGE, .max_entries = n / PAGE,
                         .map_flags = BPF_F_MMAPABLE};
  to_background("bpf-array");
  int fd = bpf(BPF_MAP_CREATE, &attr);
  char *p = fd < 0 ? MAP_FAILED : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) exit(fail("bpf array"));
  fill(p, n, "mix");
  hold();
  return 0;
}

static int bpf_hash(char **a) { // COUNT: kmalloc objects
  uint64_t value[25];
  union bpf_attr attr = {.map_type = BPF_MAP_TYPE_HASH, .key_size = 8, .value_size = sizeof value,
                         .max_entries = strtoul(a[0], NULL, 0), .map_flags = BPF_F_NO_PREALLOC};
  to_background("bpf-hash");
  int fd = bpf(BPF_MAP_CREATE, &attr);
  if (fd < 0) exit(fail("bpf hash"));
  for (uint64_t key = 0, count = attr.max_entries; key < count; key++) {
    fill_text((char *)value, sizeof value);
    attr = (union bpf_attr){.map_fd = fd, .key = (uintptr_t)&key, .value = (uintptr_t)value};
    if (bpf(BPF_MAP_UPDATE_ELEM, &attr)) break;
  }
  hold();
  return 0;
}

// ---- the crash and the dump ---------------------------------------------------------------------------------------------

static int load_capture_kernel(char **a) { // KERNEL INITRAMFS COMMANDLINE
  int kernel = open(a[0], O_RDONLY), initramfs = open(a[1], O_RDONLY);
  if (kernel < 0 || initramfs < 0) return fail("capture kernel");
  if (syscall(SYS_kexec_file_load, kernel, initramfs, strlen(a[2]) + 1, a[2], KEXEC_FILE_ON_CRASH)) return fail("kexec_file_load");
  return 0;
}

static long since(struct timespec then) { // in milliseconds
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (now.tv_sec - then.tv_sec) * 1000 + (now.tv_nsec - then.tv_nsec) / 1000000;
}

// PROGRAM ARGUMENT... OUT: says how it ended, how long it took, what memory it had at most, and when the file OUT had a first byte.
static int run(char **a) {
  struct timespec start;
  struct rusage used;
  int status;
  clock_gettime(CLOCK_MONOTONIC, &start);
  pid_t child = fork();
  if (child == 0) {
    execvp(a[0], a);
    _exit(127);
  }
  if (child < 0) return fail("run");
  char **out = a;
  while (out[1]) out++;
  long first_byte = -1;
  pid_t ended = 0;
  while (first_byte < 0 && ended == 0) {
    struct stat file;
    if (stat(*out, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0) first_byte = since(start);
    else if ((ended = wait4(child, &status, WNOHANG, &used)) == 0) usleep(5000);
  }
  if (ended == 0) ended = wait4(child, &status, 0, &used);
  if (ended != child) return fail("run");
  long wall = since(start);
  long user = used.ru_utime.tv_sec * 1000 + used.ru_utime.tv_usec / 1000;
  long system = used.ru_stime.tv_sec * 1000 + used.ru_stime.tv_usec / 1000;
  // A program ended by signal N is reported as the shell would: 128 + N.
  printf("LAB result exit=%d wall_ms=%ld user_ms=%ld system_ms=%ld peak_kib=%ld minor_faults=%ld major_faults=%ld "
         "first_byte_ms=%ld\n",
         WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), wall, user, system, used.ru_maxrss, used.ru_minflt,
         used.ru_majflt, first_byte);
  return 0;
}

static const struct {
  const char *name;
  int arguments; // at least
  int (*command)(char **);
} COMMANDS[] = {
    {"anon", 2, anon},           {"page-tables", 1, page_tables}, {"processes", 1, processes},
    {"poison", 1, poison},       {"write", 3, write_file},        {"map", 1, map_file},
    {"files", 3, files},         {"lookups", 2, lookups},         {"pipes", 1, pipes},
    {"sockets", 1, sockets},     {"bpf-array", 1, bpf_array},     {"bpf-hash", 1, bpf_hash},
    {"run", 1, run},             {"load-capture-kernel", 3, load_capture_kernel},
};

int main(int argc, char **argv) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  seed = 88172645463325252u ^ (uint64_t)now.tv_nsec << 20 ^ (uint64_t)getpid();
  setvbuf(stdout, NULL, _IOLBF, 0);
  struct rlimit many = {1 << 20, 1 << 20}, unlimited = {RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_NOFILE, &many);
  setrlimit(RLIMIT_MEMLOCK, &unlimited); // what BPF maps were charged to before 5.11
  for (size_t i = 0; argc > 1 && i < sizeof COMMANDS / sizeof *COMMANDS; i++)
    if (!strcmp(argv[1], COMMANDS[i].name) && argc - 2 >= COMMANDS[i].arguments) return COMMANDS[i].command(argv + 2);
  fprintf(stderr, "guest: unknown command or too few arguments\n");
  return 2;
}
