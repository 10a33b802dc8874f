/* Buffers that are larger than the local memory together, in C.
 *
 *   cc -I include examples/c/buffers.c -L ../../target/debug -lfarleaf_far_alloc -o buffers
 *   ./buffers 127.0.0.1:7301 "$TOKEN"
 *
 * With several memory servers ("127.0.0.1:7301,127.0.0.1:7302"), each page is on two of them.
 */
#include "farleaf.h"

#include <stdio.h>
#include <string.h>

enum { COUNT = 200, BYTES = 100000 };

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: buffers ADDRESSES TOKEN\n");
        return 2;
    }
    farleaf_options options = {0};
    options.region_bytes = 64 << 20;
    options.page_bytes = 16 << 10;
    options.buffer_pages = 128;
    options.compute_server = 9;
    options.mirror = strchr(arguments[1], ',') != NULL;
    char error[256] = "";
    farleaf_arena *arena = farleaf_arena_open(arguments[1], arguments[2], strlen(arguments[2]),
                                              &options, error, sizeof error);
    if (!arena) {
        fprintf(stderr, "cannot open the arena: %s\n", error);
        return 1;
    }
    static unsigned char *buffers[COUNT];
    for (int i = 0; i < COUNT; i++) {
        buffers[i] = farleaf_arena_alloc(arena, BYTES, 64);
        if (!buffers[i]) {
            fprintf(stderr, "no room for buffer %d\n", i);
            return 1;
        }
        memset(buffers[i], i, BYTES);
    }
    for (int i = 0; i < COUNT; i++) {
        if (farleaf_arena_ensure(arena, buffers[i], BYTES, error, sizeof error) != 0) {
            fprintf(stderr, "buffer %d is lost: %s\n", i, error);
            return 1;
        }
        unsigned char *larger = farleaf_arena_resize(arena, buffers[i], BYTES, 64, BYTES + 1000);
        if (!larger) {
            fprintf(stderr, "no room for a larger buffer %d\n", i);
            return 1;
        }
        for (int byte = 0; byte < BYTES; byte++) {
            if (larger[byte] != (unsigned char)i) {
                fprintf(stderr, "buffer %d has changed\n", i);
                return 1;
            }
        }
        farleaf_arena_free(arena, larger, BYTES + 1000, 64);
    }
    static char text[1 << 16];
    size_t bytes = farleaf_arena_metrics(arena, "buffers", text, sizeof text);
    if (bytes == 0 || bytes >= sizeof text) {
        return 1;
    }
    fputs(text, stdout);
    farleaf_arena_close(arena);
    return 0;
}
