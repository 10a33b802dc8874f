/* Far memory for C: an allocator whose memory is on memory servers. Link with farleaf_far_alloc.
 *
 * An arena is for any thread. Its memory is ordinary memory to the program: an access to what is
 * not local waits. If a memory server fails, an access aborts the program with one line;
 * farleaf_arena_ensure returns an error instead. System calls on far memory can fail with EFAULT;
 * a child process does not have it, and ends in fork if there is an arena with
 * FARLEAF_TOGETHER. */
#ifndef FARLEAF_H
#define FARLEAF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct farleaf_arena farleaf_arena;

enum farleaf_metadata { FARLEAF_SEPARATED = 0, FARLEAF_TOGETHER = 1, FARLEAF_PINNED = 2 };

/* Zeros are the defaults of what a program does not set. The structure can grow: compile programs
 * with the header of the library that they load. */
typedef struct farleaf_options {
    uint64_t region_bytes;   /* address space: a multiple of page_bytes */
    uint64_t page_bytes;     /* a power of two from 4096 to 1 MiB */
    uint64_t pinned_bytes;   /* local memory for metadata, with FARLEAF_PINNED */
    uint32_t buffer_pages;   /* pages that are local, at least 8 */
    uint32_t decay_ms;       /* how long freed memory stays; 0 discards it at once */
    uint32_t term_ms;        /* the term of its leases; 0 is a minute */
    uint16_t compute_server; /* a number that nothing else in the cluster has */
    uint8_t metadata;        /* enum farleaf_metadata */
    uint8_t retain;          /* 1 keeps the address space of what is freed */
    uint8_t mirror;          /* 1 keeps each page on two memory servers, one of which may die */
} farleaf_options;

/* Opens an arena on the memory servers at these addresses: "ip:port", with commas between them,
 * in the order of their numbers. The token is the cluster's. Returns NULL on failure, and says why
 * in `error`, which has error_bytes bytes or is NULL. */
farleaf_arena *farleaf_arena_open(const char *addresses, const void *token, size_t token_bytes,
                                  const farleaf_options *options, char *error, size_t error_bytes);

/* Ends the arena and all its memory, which no thread may use any more. NULL is ignored. */
void farleaf_arena_close(farleaf_arena *arena);

/* Memory of `bytes` bytes, at a multiple of `align`: a power of two, at most 1 MiB. NULL if there is
 * no room. */
void *farleaf_arena_alloc(farleaf_arena *arena, size_t bytes, size_t align);

/* The same memory with another size, perhaps elsewhere; `bytes` and `align` are what it has. NULL if
 * there is no room, and then it stays as it is. */
void *farleaf_arena_resize(farleaf_arena *arena, void *memory, size_t bytes, size_t align,
                           size_t new_bytes);

/* Frees memory; `bytes` and `align` are what it has. NULL is ignored. */
void farleaf_arena_free(farleaf_arena *arena, void *memory, size_t bytes, size_t align);

/* Makes memory local, so that accesses succeed unless its pages leave again. Returns 0, or -1 and
 * says why in `error`. */
int farleaf_arena_ensure(farleaf_arena *arena, const void *memory, size_t bytes, char *error,
                         size_t error_bytes);

/* Writes the counts as text in Prometheus' format, with a zero at the end. Returns the bytes that
 * the text has without it; if that is not less than `bytes`, the text is cut off. 0 on failure. */
size_t farleaf_arena_metrics(farleaf_arena *arena, const char *name, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
