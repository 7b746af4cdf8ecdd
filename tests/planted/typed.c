/* Another module, which has nothing but a data type: what a server does to it, it does to every module that has one. */
#include <stddef.h>

typedef int (*get_api)(const char *name, void *to);

static void *load(void *rdb, int version) {
    (void)rdb;
    (void)version;
    return NULL;
}

static void save(void *rdb, void *value) {
    (void)rdb;
    (void)value;
}

/* RedisModuleTypeMethods, version 1. */
struct methods {
    unsigned long version;
    void *(*load)(void *, int);
    void (*save)(void *, void *);
    void *others[4];
};

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    (void)argv;
    (void)argc;
    get_api get = *(get_api *)ctx; /* by convention the first field of the context */
    void (*introduce)(void *, const char *, int, int) = NULL;
    void *(*create)(void *, const char *, int, struct methods *) = NULL;
    struct methods methods = {1, load, save, {NULL}};
    get("RedisModule_SetModuleAttribs", &introduce);
    get("RedisModule_CreateDataType", &create);
    introduce(ctx, "typed", 1, 1);
    return create(ctx, "typed-abc", 0, &methods) == NULL;
}
