/* Another module, which calls RLOCK.ACQUIRE: `CALLER.ACQUIRE key owner [words …]`, in a thread of its own by
 * `CALLER.THREAD key owner [words …]`; any command, and allows it to block, by `CALLER.PATIENT command [words …]`; and
 * deletes the key `door` when a key `trap` comes into being. Knows nothing of Redis but what the server hands to every module. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int (*get_api)(const char *name, void *to);

static void *(*call)(void *ctx, const char *command, const char *format, ...);
static int (*reply_with)(void *ctx, void *reply);
static int (*reply_with_error)(void *ctx, const char *line);
static void (*free_reply)(void *reply);
static void *(*block)(void *ctx, void *replied, void *late, void *freed, long long ms);
static int (*unblock)(void *blocked, void *data);
static void *(*begin)(void *blocked);
static void (*end)(void *ctx);
static void (*lock)(void *ctx);
static void (*unlock)(void *ctx);
static void *(*copy)(void *ctx, const void *string);
static void (*free_string)(void *ctx, void *string);
static const char *(*string)(const void *string, size_t *len);

/* REDISMODULE_NOTIFY_NEW: a key that was not there. */
enum { APPEARED = 1 << 14 };

static int pass_on(void *ctx, void *reply) {
    if (reply == NULL)
        return reply_with_error(ctx, "ERR the server refused the call");
    reply_with(ctx, reply);
    free_reply(reply);
    return 0;
}

static int acquire(void *ctx, void **argv, int argc) {
    return pass_on(ctx, call(ctx, "RLOCK.ACQUIRE", "v", argv + 1, (size_t)(argc - 1)));
}

static int patient(void *ctx, void **argv, int argc) {
    size_t len;
    return pass_on(ctx, call(ctx, string(argv[1], &len), "vK", argv + 2, (size_t)(argc - 2)));
}

struct work {
    void *blocked;
    int argc;
    void *argv[16];
};

static void *in_thread(void *given) {
    struct work *work = given;
    void *ctx = begin(work->blocked);
    lock(ctx);
    acquire(ctx, work->argv, work->argc);
    for (int i = 0; i < work->argc; i++)
        free_string(ctx, work->argv[i]);
    unlock(ctx);
    end(ctx);
    unblock(work->blocked, NULL);
    free(work);
    return NULL;
}

static int thread(void *ctx, void **argv, int argc) {
    struct work *work = calloc(1, sizeof *work);
    work->argc = argc < 16 ? argc : 16;
    for (int i = 0; i < work->argc; i++)
        work->argv[i] = copy(NULL, argv[i]);
    work->blocked = block(ctx, NULL, NULL, NULL, 0);
    pthread_t id;
    pthread_create(&id, NULL, in_thread, work);
    pthread_detach(id);
    return 0;
}

static int appeared(void *ctx, int type, const char *event, void *key) {
    (void)type;
    (void)event;
    size_t len;
    const char *name = string(key, &len);
    if (len == 4 && memcmp(name, "trap", 4) == 0)
        free_reply(call(ctx, "DEL", "c!", "door"));
    return 0;
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    (void)argv;
    (void)argc;
    get_api get = *(get_api *)ctx; /* by convention the first field of the context */
    void (*introduce)(void *, const char *, int, int) = NULL;
    int (*create)(void *, const char *, int (*)(void *, void **, int), const char *, int, int, int) = NULL;
    int (*subscribe)(void *, int, int (*)(void *, int, const char *, void *)) = NULL;
    get("RedisModule_SetModuleAttribs", &introduce);
    get("RedisModule_SubscribeToKeyspaceEvents", &subscribe);
    get("RedisModule_StringPtrLen", &string);
    get("RedisModule_CreateCommand", &create);
    get("RedisModule_Call", &call);
    get("RedisModule_ReplyWithCallReply", &reply_with);
    get("RedisModule_ReplyWithError", &reply_with_error);
    get("RedisModule_FreeCallReply", &free_reply);
    get("RedisModule_BlockClient", &block);
    get("RedisModule_UnblockClient", &unblock);
    get("RedisModule_GetThreadSafeContext", &begin);
    get("RedisModule_FreeThreadSafeContext", &end);
    get("RedisModule_ThreadSafeContextLock", &lock);
    get("RedisModule_ThreadSafeContextUnlock", &unlock);
    get("RedisModule_CreateStringFromString", &copy);
    get("RedisModule_FreeString", &free_string);
    introduce(ctx, "caller", 1, 1);
    subscribe(ctx, APPEARED, appeared);
    create(ctx, "caller.thread", thread, "write", 1, 1, 1);
    create(ctx, "caller.patient", patient, "write", 0, 0, 0);
    return create(ctx, "caller.acquire", acquire, "write", 1, 1, 1);
}
