/* A module with one use after free and one leak, for scripts/valgrind.sh: what reports these would report ours.
 * It takes its memory as the module does, from the server, and then refuses to load. */
#include <stddef.h>

typedef int (*get_api)(const char *name, void *to);

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    (void)argv;
    (void)argc;
    get_api get = *(get_api *)ctx; /* by convention the first field of the context */
    void *(*alloc)(size_t) = NULL;
    void (*release)(void *) = NULL;
    get("RedisModule_Alloc", &alloc);
    get("RedisModule_Free", &release);

    volatile char *used_after_free = alloc(32);
    release((void *)used_after_free);
    char seen = used_after_free[0];

    volatile char *leaked = alloc(7777);
    leaked[0] = seen;
    leaked = NULL;
    return 1;
}
