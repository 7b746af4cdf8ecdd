/* Another module, which has nothing but a data type and TYPED.SET key: what a server does to it, it does to every module
   that has one. */
#include <stddef.h>

typedef int (*get_api)(const char *name, void *to);

static void *type;
static void *(*open_key)(void *, void *, int);
static int (*set_value)(void *, void *, void *);
static void (*close_key)(void *);
static int (*reply)(void *, long long);

static int set(void *ctx, void **argv, int argc) {
    void *key = open_key(ctx, argv[argc - 1], 2 /* for writing */);
    int code = set_value(key, type, &type);
    close_key(key);
    return reply(ctx, code);
}

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
    int (*create_command)(void *, const char *, int (*)(void *, void **, int), const char *, int, int, int) = NULL;
    struct methods methods = {1, load, save, {NULL}};
    get("RedisModule_SetModuleAttribs", &introduce);
    get("RedisModule_CreateDataType", &create);
    get("RedisModule_CreateCommand", &create_command);
    get("RedisModule_OpenKey", &open_key);
    get("RedisModule_ModuleTypeSetValue", &set_value);
    get("RedisModule_CloseKey", &close_key);
    get("RedisModule_ReplyWithLongLong", &reply);
    introduce(ctx, "typed", 1, 1);
    type = create(ctx, "typed-abc", 0, &methods);
    return type == NULL || create_command(ctx, "typed.set", set, "write", 1, 1, 1);
}
