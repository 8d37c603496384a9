// What reading a core costs by each way there is: mapped windows or reads, of each size, on one or more threads. For /proc/vmcore
// in a capture kernel and for regular files. Static, without dependencies.
//
//   probe read FILE PATTERNS METHODS THREADS MIB ROUNDS     each of the first three lists, separated by commas
//   probe costs [FILE]
//
//   PATTERN  seq       one piece of MIB MiB
//            slab      pieces of 2 MiB, as a memory map has them
//            N/M       N pages out of every M, as kept pages have them
//   METHOD   rSIZE     pread into a buffer of SIZE
//            mSIZE     mmap of SIZE from the first byte on that no window shows; then the next, when the last is unmapped.
//                      Letters behind the SIZE: p MAP_POPULATE, s MAP_SHARED, w MADV_WILLNEED, f MADV_POPULATE_READ,
//                      r MADV_RANDOM (no fault-around), e exactly the piece instead of SIZE
//            k         a mapping that was there before and has been walked once: the least that reading memory costs
//            w         nothing is read (what the walk itself costs)
//
// Every method reads the first word of each 64 bytes, where it is first found: for reads in the buffer, which a core's cache
// holds. Threads take 256 KiB at a time (2 MiB of slabs), as the pipeline and the scan do. Rounds of all methods alternate; the
// round with the least processor time counts.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, KIB = 1 << 10, MIB = 1 << 20, MAX_METHODS = 64 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

typedef struct {
  uint64_t offset;
  size_t len;
} Piece;

typedef struct {
  char name[24], kind, *flags;
  size_t size;
} Method;

typedef struct {
  uint64_t user_us, system_us, wall_us, minor_faults, calls;
} Cost;

static void fail(const char *what) {
  printf("LAB note probe: %s: %s\n", what, strerror(errno));
  exit(1);
}

static size_t size_of(char **text) {
  size_t n = strtoul(*text, text, 10);
  if (**text == 'k') return ++*text, n * KIB;
  if (**text == 'm') return ++*text, n * MIB;
  return n;
}

// ---- measuring ----------------------------------------------------------------------------------------------------------

static uint64_t microseconds(struct timeval t) { return t.tv_sec * 1000000ull + t.tv_usec; }

static Cost now(void) {
  struct rusage used;
  struct timespec t;
  getrusage(RUSAGE_SELF, &used);
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (Cost){microseconds(used.ru_utime), microseconds(used.ru_stime), t.tv_sec * 1000000ull + t.tv_nsec / 1000, used.ru_minflt, 0};
}

static Cost since(Cost then) {
  Cost n = now();
  return (Cost){n.user_us - then.user_us, n.system_us - then.system_us, n.wall_us - then.wall_us, n.minor_faults - then.minor_faults, 0};
}

// ---- reading ------------------------------------------------------------------------------------------------------------

static int fd;
static uint64_t file_len;
static Piece *pieces;
static size_t piece_count, batch_bytes;
static const Method *method;
static atomic_size_t next_piece;
static atomic_ullong total, calls;

static __attribute__((noinline)) uint64_t sweep(const char *p, size_t len) {
  uint64_t sum = 0;
  for (size_t i = 0; i < len; i += 64) sum += *(const uint64_t *)(p + i);
  return sum;
}

typedef struct {
  char *at;
  uint64_t start, end;
} Window;

static void give_up(Window *w) {
  if (w->end && munmap(w->at, w->end - w->start)) fail("munmap");
  w->end = 0;
}

static void take(Window *w, uint64_t offset, size_t len) {
  give_up(w);
  int flags = (strchr(method->flags, 's') ? MAP_SHARED : MAP_PRIVATE) | (strchr(method->flags, 'p') ? MAP_POPULATE : 0);
  size_t size = strchr(method->flags, 'e') || method->kind == 'k' ? len : method->size;
  if (size > file_len - offset) size = (file_len - offset) / PAGE * PAGE;
  w->at = mmap(NULL, size, PROT_READ, flags, fd, offset);
  if (w->at == MAP_FAILED) fail("mmap");
  w->start = offset, w->end = offset + size;
  if (strchr(method->flags, 'w')) madvise(w->at, size, MADV_WILLNEED);
  if (strchr(method->flags, 'r')) madvise(w->at, size, MADV_RANDOM);
  if (strchr(method->flags, 'f') && madvise(w->at, size, MADV_POPULATE_READ)) fail("MADV_POPULATE_READ");
}

static Window kept;

static void *work(void *unused) {
  (void)unused;
  char *buffer = method->kind == 'r' ? malloc(method->size) : NULL;
  Window window = {0};
  uint64_t sum = 0, n = 0;
  // A batch is pieces of batch_bytes in all, so that the counter need not be asked for each.
  size_t a_batch = batch_bytes / pieces[0].len;
  if (a_batch == 0) a_batch = 1;
  for (;;) {
    size_t first = atomic_fetch_add(&next_piece, a_batch);
    if (first >= piece_count) break;
    for (size_t i = first; i < first + a_batch && i < piece_count; i++) {
      uint64_t at = pieces[i].offset, end = at + pieces[i].len;
      if (method->kind == 'w') continue;
      while (at < end) {
        if (method->kind == 'k') {
          sum += sweep(kept.at + (at - kept.start), end - at);
          at = end;
        } else if (method->kind == 'r') {
          size_t len = end - at < method->size ? end - at : method->size;
          ssize_t got = pread(fd, buffer, len, at);
          n++;
          if (got <= 0) fail("pread");
          sum += sweep(buffer, got);
          at += got;
        } else {
          if (at < window.start || at >= window.end) take(&window, at, end - at), n++;
          uint64_t to = end < window.end ? end : window.end;
          sum += sweep(window.at + (at - window.start), to - at);
          at = to;
        }
      }
    }
  }
  give_up(&window);
  free(buffer);
  atomic_fetch_add(&total, sum);
  atomic_fetch_add(&calls, n);
  return NULL;
}

static Cost measure(long threads) {
  pthread_t others[64];
  if (method->kind == 'k') {
    Piece last = pieces[piece_count - 1];
    take(&kept, pieces[0].offset, last.offset + last.len - pieces[0].offset);
    for (size_t i = 0; i < piece_count; i++)
      atomic_fetch_add(&total, sweep(kept.at + (pieces[i].offset - kept.start), pieces[i].len));
  }
  atomic_store(&next_piece, 0);
  atomic_store(&calls, 0);
  Cost start = now();
  for (long i = 1; i < threads; i++)
    if (pthread_create(&others[i], NULL, work, NULL)) fail("pthread_create");
  work(NULL);
  for (long i = 1; i < threads; i++) pthread_join(others[i], NULL);
  Cost cost = since(start);
  give_up(&kept);
  cost.calls = atomic_load(&calls);
  return cost;
}

// ---- what is read -------------------------------------------------------------------------------------------------------

// The file's longest PT_LOAD, or all of a file that is no core.
static Piece longest(void) {
  Elf64_Ehdr head;
  Piece best = {0, file_len};
  if (pread(fd, &head, sizeof head, 0) != sizeof head || memcmp(head.e_ident, ELFMAG, SELFMAG)) return best;
  best.len = 0;
  for (int i = 0; i < head.e_phnum; i++) {
    Elf64_Phdr p;
    if (pread(fd, &p, sizeof p, head.e_phoff + i * sizeof p) != sizeof p) fail("program headers");
    if (p.p_type == PT_LOAD && p.p_filesz > best.len) best = (Piece){p.p_offset, p.p_filesz};
  }
  uint64_t skip = -best.offset % PAGE; // QEMU's are at no page border
  return (Piece){best.offset + skip, best.len - skip};
}

static void plan(const char *pattern, size_t bytes) {
  Piece all = longest();
  size_t run = 0, every = 0;
  free(pieces);
  if (bytes > all.len) bytes = all.len / (2 * MIB) * (2 * MIB);
  batch_bytes = 256 * KIB;
  if (!strcmp(pattern, "seq")) {
    // In the pieces that threads take; windows go over their borders.
    run = every = 256 * KIB;
  } else if (!strcmp(pattern, "slab")) {
    run = batch_bytes = 2 * MIB;
    every = all.len / (bytes / run) / run * run; // all over the file
  } else if (sscanf(pattern, "%zu/%zu", &run, &every) == 2 && run && run <= every) {
    run *= PAGE, every *= PAGE;
  } else {
    printf("LAB note probe: no pattern %s\n", pattern), exit(2);
  }
  piece_count = bytes / run;
  if (piece_count > all.len / every) piece_count = all.len / every;
  pieces = malloc(piece_count * sizeof *pieces);
  uint64_t from = all.offset + (all.len - piece_count * every) / 2 / (2 * MIB) * (2 * MIB);
  for (size_t i = 0; i < piece_count; i++) pieces[i] = (Piece){from + i * every, run};
}

static int compare(char **a) {
  static Method methods[MAX_METHODS];
  static Cost best[MAX_METHODS];
  int count = 0;
  fd = open(a[0], O_RDONLY);
  if (fd < 0) fail(a[0]);
  file_len = lseek(fd, 0, SEEK_END);
  for (char *m = strtok(a[2], ","); m && count < MAX_METHODS; m = strtok(NULL, ",")) {
    Method *to = &methods[count++];
    snprintf(to->name, sizeof to->name, "%s", m);
    to->kind = *m++;
    to->size = size_of(&m);
    to->flags = m;
  }
  size_t bytes = strtoul(a[4], NULL, 10) * MIB;
  char *rest_p, *rest_t, copy[256];
  for (char *pattern = strtok_r(a[1], ",", &rest_p); pattern; pattern = strtok_r(NULL, ",", &rest_p)) {
    plan(pattern, bytes);
    uint64_t read = piece_count * pieces[0].len;
    snprintf(copy, sizeof copy, "%s", a[3]);
    for (char *t = strtok_r(copy, ",", &rest_t); t; t = strtok_r(NULL, ",", &rest_t)) {
      long threads = strtol(t, NULL, 10);
      for (long round = 0; round < strtol(a[5], NULL, 10); round++)
        for (int m = 0; m < count; m++) {
          method = &methods[m];
          Cost cost = measure(threads);
          if (round == 0 || cost.user_us + cost.system_us < best[m].user_us + best[m].system_us) best[m] = cost;
        }
      for (int m = 0; m < count; m++) {
        Cost c = best[m];
        printf("LAB probe pattern=%s threads=%ld method=%s mib=%lu user_us=%lu system_us=%lu wall_us=%lu faults=%lu calls=%lu ns_a_page=%.0f "
               "ns_a_struct_page=%.2f\n",
               pattern, threads, methods[m].name, read / MIB, c.user_us, c.system_us, c.wall_us, c.minor_faults, c.calls,
               (c.user_us + c.system_us) * 1e3 / (read / PAGE), (c.user_us + c.system_us) * 1e3 / (read / 64));
      }
    }
  }
  return 0;
}

// ---- single costs -------------------------------------------------------------------------------------------------------

static atomic_int stop;

static void *spin(void *unused) {
  (void)unused;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) atomic_fetch_add(&total, 1);
  return NULL;
}

// A mapping made, touched in each of its pages (or not), and unmapped; in nanoseconds of time.
static double a_pair(size_t pages, int touch, int file) {
  enum { TIMES = 400 };
  uint64_t at = file ? longest().offset : 0;
  Cost start = now();
  for (int i = 0; i < TIMES; i++) {
    char *p = mmap(NULL, pages * PAGE, PROT_READ, MAP_PRIVATE | (file ? 0 : MAP_ANONYMOUS), file ? fd : -1, at);
    if (p == MAP_FAILED) fail("mmap");
    if (!file) madvise(p, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t j = 0; touch && j < pages; j++) (void)*(volatile char *)(p + j * PAGE);
    munmap(p, pages * PAGE);
  }
  return since(start).wall_us * 1e3 / TIMES;
}

static int costs(char **a) {
  const char *path = a[0];
  if (path && (fd = open(path, O_RDONLY)) < 0) fail(path);
  if (path) file_len = lseek(fd, 0, SEEK_END);
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  for (int others = 0; others < (cpus > 1 ? 2 : 1); others++) {
    pthread_t other;
    atomic_store(&stop, 0);
    if (others && pthread_create(&other, NULL, spin, NULL)) fail("pthread_create");
    for (int file = 0; file <= (path != NULL); file++)
      for (size_t pages = 1; pages <= 256; pages *= 4)
        printf("LAB probe costs mapping=%s pages=%zu spinning=%d map_unmap_ns=%.0f touched_ns=%.0f\n", file ? "file" : "anonymous", pages,
               others, a_pair(pages, 0, file), a_pair(pages, 1, file));
    atomic_store(&stop, 1);
    if (others) pthread_join(other, NULL);
  }
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 8 && !strcmp(argv[1], "read")) return compare(argv + 2);
  if (argc >= 2 && !strcmp(argv[1], "costs")) return costs(argv + 2);
  fprintf(stderr, "probe: see the head of its source\n");
  return 2;
}
