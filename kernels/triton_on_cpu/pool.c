/* Threads that run kernels: held between launches, and handed programs in small chunks.
 *
 * A list of launches is run in order; each begins when all programs of the one before are done. No thread waits for
 * another to arrive: whoever finishes the last program of a launch publishes the next, and a thread that the system has
 * put aside between two chunks holds up nobody. The caller takes part (or waits, so that it can end a launch in time).
 *
 * One word says what can be taken: the ticket, generation << 32 | next program. A chunk is taken by compare-and-swap on
 * the whole word, so a late thread can never take a program of another launch than the one whose fields it has read:
 * between two launches the generation moves on twice, first to 'closed', then the fields are written, then to 'open'.
 *
 * A waiting thread spins for SPIN_NS and then sleeps on a futex of its own. Before, it looks whether a thread that has
 * a chunk is at work: one that the system keeps from its processor gets no more programs of this list.
 */
#define _GNU_SOURCE
#include "runtime.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
#define STACK_BYTES (64 << 20) /* address space; the system gives memory where it is touched */
#define SPIN_NS 50000
#define LOOK_NS 20000  /* a running thread's own clock moves within that time */
#define WAKE_NS 100000 /* less work than this is done before a sleeping thread is there: waking took 57 us in a VM */
/* In place of a next program; no program has these numbers, for a grid has at most INT32_MAX. */
#define CLOSED 0xffffffffu   /* one launch is over, the next is being written */
#define FINISHED 0xfffffffeu /* the list is over */

typedef const launch *const *launches;

typedef struct {
  _Alignas(64) int32_t asleep; /* a futex */
  int32_t has_chunk;
  clockid_t clock; /* the thread's own */
} seat;

static struct {
  _Alignas(64) uint64_t ticket;
  _Alignas(64) int32_t done; /* programs of the open launch */
  _Alignas(64) const launch *open; /* whose programs the ticket counts */
  int32_t total, threads;    /* its programs; who may take them: 0 (the caller) to threads - 1, or 1 to threads */
  launches list;
  int64_t length, at;
  int32_t busy, num_workers, caller_helps, pays_waking;
  int32_t cost_ns[256]; /* what a program took lately, by its kernel's address; 0: not known */
  _Alignas(64) uint64_t put_aside; /* list << 32 | a bit for each of the first 32 threads, never all that may take programs */
  seat seats[MAX_THREADS + 1]; /* 0 is the caller's */
} pool;

#define GET(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define SET(x, value) __atomic_store_n(&(x), value, __ATOMIC_RELAXED)

static int64_t ns_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t now_ns(void) { return ns_of(CLOCK_MONOTONIC); }

static void breathe(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t num_programs(const launch *l) { return (int64_t)l->grid[0] * l->grid[1] * l->grid[2]; }

static void wake(int who) {
  int32_t *futex = &pool.seats[who].asleep;
  if (__atomic_load_n(futex, __ATOMIC_SEQ_CST) && __atomic_exchange_n(futex, 0, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, futex, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static int32_t *cost_of(const launch *l) { return &pool.cost_ns[((uintptr_t)l->run_programs >> 4) % 256]; }

static int is_put_aside(int who) { return who < 32 && __atomic_load_n(&pool.put_aside, __ATOMIC_ACQUIRE) >> who & 1; }

/* Threads that have a chunk and no processor are put aside: their clocks stand still. A thread that may take programs of
 * this list, and goes on, does so; the list's number in the word keeps it from doing so to the next list's. */
static void put_aside_the_absent(int self) {
  for (int who = 0; who < 32 && who <= GET(pool.threads); who++) {
    uint64_t known = __atomic_load_n(&pool.put_aside, __ATOMIC_ACQUIRE);
    int first = !GET(pool.caller_helps);
    if (self >= 32 || self < first || self >= first + GET(pool.threads) || known >> self & 1) return;
    if (who == self || !GET(pool.seats[who].has_chunk)) continue;
    int64_t begin = now_ns(), clock = ns_of(pool.seats[who].clock);
    while (now_ns() - begin < LOOK_NS) breathe();
    if (GET(pool.seats[who].has_chunk) && ns_of(pool.seats[who].clock) == clock)
      __atomic_compare_exchange_n(&pool.put_aside, &known, known | 1ULL << who, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  }
}

/* Until the generation is another than `seen`, or for `limit_ns` (-1: for ever). */
static void wait_for_news(int who, uint32_t seen, int64_t limit_ns) {
  int64_t begin = now_ns();
  for (int spins = 1; (uint32_t)(__atomic_load_n(&pool.ticket, __ATOMIC_ACQUIRE) >> 32) == seen; spins++) {
    breathe();
    if (!is_put_aside(who)) {
      if (spins % 16 || now_ns() - begin < SPIN_NS) continue;
      put_aside_the_absent(who);
    }
    int32_t *futex = &pool.seats[who].asleep;
    __atomic_store_n(futex, 1, __ATOMIC_SEQ_CST);
    if ((uint32_t)(__atomic_load_n(&pool.ticket, __ATOMIC_SEQ_CST) >> 32) == seen) {
      int64_t left = limit_ns - (now_ns() - begin);
      struct timespec t = {left / 1000000000, left % 1000000000};
      if (limit_ns < 0 || left > 0) syscall(SYS_futex, futex, FUTEX_WAIT_PRIVATE, 1, limit_ns < 0 ? NULL : &t, NULL, 0);
    }
    SET(*futex, 0);
    if (limit_ns >= 0 && now_ns() - begin >= limit_ns) return;
  }
}

/* Opens the next launch of the list that has programs, or ends the list. Called when no thread can have a chunk: by the
 * one that finished the last program, or by the caller at the beginning (self < 0: the caller will not help). Wakes as
 * many threads as there is work for. */
static void publish_next(int self) {
  uint64_t closed = ((GET(pool.ticket) >> 32) + 1) << 32, open = closed + (1ULL << 32);
  SET(pool.ticket, closed | CLOSED);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  while (pool.at < pool.length && num_programs(pool.list[pool.at]) == 0) pool.at++;
  if (pool.at == pool.length) {
    __atomic_store_n(&pool.ticket, open | FINISHED, __ATOMIC_SEQ_CST);
    wake(0); /* of the pool nothing else may be touched now: the caller may have left, and come again */
    return;
  }
  const launch *next = pool.list[pool.at++];
  int32_t total = (int32_t)num_programs(next);
  SET(pool.open, next);
  SET(pool.total, total), SET(pool.done, 0);
  int32_t first = !pool.caller_helps, end = first + pool.threads, helps = self >= first && !is_put_aside(self);
  int32_t to_wake = helps && !pool.pays_waking ? 0 : total - helps;
  __atomic_store_n(&pool.ticket, open, __ATOMIC_SEQ_CST);
  for (int who = first; who < end && to_wake > 0; who++)
    if (who != self && !is_put_aside(who)) wake(who), to_wake--;
}

/* Takes chunks until there is none for this thread; returns the ticket that says so. */
static uint64_t work(int who) {
  for (;;) {
    uint64_t ticket = __atomic_load_n(&pool.ticket, __ATOMIC_ACQUIRE);
    uint32_t next = (uint32_t)ticket;
    const launch *open = GET(pool.open);
    int32_t total = GET(pool.total), threads = GET(pool.threads);
    if (next >= (uint32_t)total || who >= threads + !GET(pool.caller_helps) || is_put_aside(who)) return ticket;
    int32_t chunk = (int32_t)(total - next) / (4 * threads); /* large ones first, then down to single programs */
    if (chunk < 1) chunk = 1;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!__atomic_compare_exchange_n(&pool.ticket, &ticket, ticket + chunk, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      continue;
    SET(pool.seats[who].has_chunk, 1);
    int64_t before = now_ns();
    open->run_programs(open, (int32_t)next, (int32_t)next + chunk);
    int64_t cost = (now_ns() - before) / chunk;
    SET(pool.seats[who].has_chunk, 0);
    SET(*cost_of(open), cost < 1 ? 1 : cost < WAKE_NS ? (int32_t)cost : WAKE_NS);
    if (__atomic_add_fetch(&pool.done, chunk, __ATOMIC_ACQ_REL) == total) publish_next(who);
  }
}

static void *worker(void *number) {
  int who = (int)(intptr_t)number;
  pthread_getcpuclockid(pthread_self(), &pool.seats[who].clock);
  for (;;) wait_for_news(who, (uint32_t)(work(who) >> 32), -1);
  return NULL;
}

/* A forked child has none of the threads, and may have been forked in the middle of a launch. */
static void begin_anew(void) { memset(&pool, 0, sizeof pool); }

/* Starts workers up to `wanted`; returns how many there are. Signals are for the threads of Python. */
static int32_t start_workers(int32_t wanted) {
  static int registered;
  if (!registered) registered = !pthread_atfork(NULL, NULL, begin_anew);
  sigset_t all, before;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (pthread_t thread; pool.num_workers < wanted; pool.num_workers++)
    if (pthread_create(&thread, &attributes, worker, (void *)(intptr_t)(pool.num_workers + 1))) break;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return pool.num_workers;
}

/* Whether a list is work enough for threads that sleep: a step of many small launches is. */
static int pays_waking(launches list, int64_t length) {
  int64_t total_ns = 0;
  for (int64_t i = 0; i < length && total_ns < WAKE_NS; i++) {
    int64_t cost = GET(*cost_of(list[i]));
    total_ns += cost ? cost * num_programs(list[i]) : WAKE_NS;
  }
  return total_ns >= WAKE_NS;
}

/* Begins a list of launches; 0 if the pool is taken or has no threads. `list` must stay until it is finished. */
static int begin(launches list, int64_t length, int32_t threads, int caller_helps) {
  if (__atomic_exchange_n(&pool.busy, 1, __ATOMIC_ACQUIRE)) return 0;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  int32_t workers = pool.num_workers, wanted = threads - !!caller_helps;
  if (workers < wanted) workers = start_workers(wanted);
  if (workers < wanted) threads = workers + !!caller_helps;
  if (threads < 1) {
    __atomic_store_n(&pool.busy, 0, __ATOMIC_RELEASE);
    return 0;
  }
  pool.list = list, pool.length = length, pool.at = 0;
  SET(pool.threads, threads), SET(pool.caller_helps, caller_helps);
  pool.pays_waking = pays_waking(list, length);
  __atomic_store_n(&pool.put_aside, ((GET(pool.put_aside) >> 32) + 1) << 32, __ATOMIC_RELEASE);
  if (caller_helps) pthread_getcpuclockid(pthread_self(), &pool.seats[0].clock);
  publish_next(caller_helps ? 0 : -1);
  return 1;
}

/* For a launch that has a time limit: pool_start, then pool_wait until it returns 1. */
int pool_start(launches list, int64_t length, int32_t threads) { return begin(list, length, threads, 0); }

int pool_wait(int64_t limit_ns) {
  for (int64_t end = now_ns() + limit_ns, left = limit_ns; left >= 0; left = end - now_ns()) {
    uint64_t ticket = __atomic_load_n(&pool.ticket, __ATOMIC_ACQUIRE);
    if ((uint32_t)ticket == FINISHED) {
      __atomic_store_n(&pool.busy, 0, __ATOMIC_RELEASE);
      return 1;
    }
    wait_for_news(0, (uint32_t)(ticket >> 32), left);
  }
  return 0;
}

/* Runs a list of launches to its end; alone if the pool is at work for another thread. */
void pool_run(launches list, int64_t length, int32_t threads) {
  int is_single = threads == 1 || (length == 1 && num_programs(*list) <= 1);
  if (is_single || !begin(list, length, threads, 1)) {
    for (int64_t i = 0; i < length; i++) list[i]->run_programs(list[i], 0, (int32_t)num_programs(list[i]));
    return;
  }
  for (uint64_t ticket; (uint32_t)(ticket = work(0)) != FINISHED;) wait_for_news(0, (uint32_t)(ticket >> 32), -1);
  __atomic_store_n(&pool.busy, 0, __ATOMIC_RELEASE);
}

void pool_launch(const launch *l, int32_t threads) { pool_run(&l, 1, threads); }
