/* An allocator under which a wrong address ends the process.
 *
 * While it is on, each allocation ends at a page that cannot be touched: reading or writing past its end is a
 * segmentation fault. Memory that was freed cannot be touched either, and its addresses are not given again. Bytes
 * between the end of an allocation and the page (fewer than its alignment), and 64 bytes before its beginning, hold a
 * pattern that is checked when it is freed. New memory holds 0xA5 in each byte.
 *
 *     gcc -O2 -shared -fPIC guard_pages.c -o guard_pages.so
 *     LD_PRELOAD=./guard_pages.so python -m pytest -p guard_pages ...
 *
 * Only allocations that come from chosen code are guarded, see `guard_range`: an interpreter makes millions, and Linux
 * gives a process 65,530 mappings. The others are glibc's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

#define PAGE 4096UL
#define REGION (1UL << 42) /* of addresses, of which none is used twice */
#define MOST_LIVE 28000    /* guarded at a time: each takes two mappings */
#define MOST_RANGES 64
#define BEFORE 64 /* bytes with a pattern before an allocation */
#define FRESH 0xA5
#define SLACK 0x5C
#define BELOW 0x5D

struct head { /* in a page of its own, before those of the allocation */
    size_t pages, size;
    char *user;
};

static char *base;
static atomic_size_t used;
static atomic_long live, made;
static atomic_int is_on;
static size_t least_size = 1;
static uintptr_t range_begin[MOST_RANGES], range_end[MOST_RANGES];
static int ranges;

/* Guard allocations that calls in begin..end make; without a range, all are guarded. */
void guard_range(uintptr_t begin, uintptr_t end) {
    if (ranges < MOST_RANGES) {
        range_begin[ranges] = begin;
        range_end[ranges++] = end;
    }
}

/* Guard allocations of at least so many bytes from here on. */
void guard_on(size_t least) {
    least_size = least;
    if (!base) {
        void *region = mmap(0, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED) return;
        base = region;
    }
    atomic_store(&is_on, 1);
}

void guard_off(void) { atomic_store(&is_on, 0); }
long guard_made(void) { return made; }
long guard_live(void) { return live; }

static int is_guarded(const void *p) { return base && (const char *)p >= base && (const char *)p < base + REGION; }

static int wants(size_t size, const void *caller) {
    if (!is_on || size < least_size || live >= MOST_LIVE) return 0;
    for (int i = 0; i < ranges; i++)
        if ((uintptr_t)caller >= range_begin[i] && (uintptr_t)caller < range_end[i]) return 1;
    return ranges == 0;
}

static void die(const char *words) {
    if (write(2, words, strlen(words))) abort();
    abort();
}

static void *allocate(size_t size, size_t align) {
    if (align > PAGE || size > REGION / 4) return 0;
    size_t body = (size + align - 1) / align * align;
    size_t pages = (body + PAGE - 1) / PAGE + 2; /* head, body, guard */
    size_t at = atomic_fetch_add(&used, pages * PAGE);
    if (at + pages * PAGE > REGION) return 0;
    char *slot = base + at, *end = slot + (pages - 1) * PAGE, *user = end - body;
    if (mprotect(slot, (pages - 1) * PAGE, PROT_READ | PROT_WRITE)) return 0;
    struct head *head = (struct head *)slot;
    *head = (struct head){pages, size, user};
    memset(user, FRESH, size);
    memset(user + size, SLACK, body - size);
    if (user - BEFORE >= slot + sizeof *head) memset(user - BEFORE, BELOW, BEFORE);
    live++;
    made++;
    return user;
}

static struct head *head_of(const void *p) { return (struct head *)(((uintptr_t)p & ~(PAGE - 1)) - PAGE); }

static void release(char *p) {
    struct head *head = head_of(p);
    if (head->user != p) die("guard_pages: an address is freed that was not given\n");
    for (char *c = p + head->size; c < (char *)head + (head->pages - 1) * PAGE; c++)
        if (*c != SLACK) die("guard_pages: something was written past the end of an allocation\n");
    for (char *c = p - BEFORE; c >= (char *)head + sizeof *head && c < p; c++)
        if (*c != BELOW) die("guard_pages: something was written before the beginning of an allocation\n");
    size_t bytes = head->pages * PAGE;
    madvise(head, bytes, MADV_DONTNEED);
    mprotect(head, bytes, PROT_NONE);
    live--;
}

static void *aligned(size_t align, size_t size, const void *caller) {
    void *p = wants(size, caller) ? allocate(size, align < 16 ? 16 : align) : 0;
    return p ? p : __libc_memalign(align, size);
}

void *malloc(size_t size) {
    void *p = wants(size, __builtin_return_address(0)) ? allocate(size, 16) : 0;
    return p ? p : __libc_malloc(size);
}

void *calloc(size_t count, size_t each) {
    size_t size;
    if (__builtin_mul_overflow(count, each, &size)) {
        errno = ENOMEM;
        return 0;
    }
    void *p = wants(size, __builtin_return_address(0)) ? allocate(size, 16) : 0;
    return p ? memset(p, 0, size) : __libc_calloc(count, each);
}

void free(void *p) {
    if (is_guarded(p))
        release(p);
    else
        __libc_free(p);
}

void *realloc(void *p, size_t size) {
    if (!is_guarded(p)) return __libc_realloc(p, size);
    size_t before = head_of(p)->size;
    void *moved = allocate(size ? size : 1, 16);
    if (!moved) moved = __libc_malloc(size ? size : 1);
    if (moved) {
        memcpy(moved, p, before < size ? before : size);
        release(p);
    }
    return moved;
}

void *memalign(size_t align, size_t size) { return aligned(align, size, __builtin_return_address(0)); }
void *aligned_alloc(size_t align, size_t size) { return aligned(align, size, __builtin_return_address(0)); }

int posix_memalign(void **out, size_t align, size_t size) {
    void *p = aligned(align, size, __builtin_return_address(0));
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

size_t malloc_usable_size(void *p) { return is_guarded(p) ? head_of(p)->size : 0; }
