/* The floor: the least work that a server needs for any module that keeps locks as keys. This module does
 * nothing else: it has one owner and one mode, no queue and no depth, and checks only the number of words. The
 * benchmarks run it beside RLOCK, to show which part of the cost is RLOCK's own.
 *
 *   FLOOR.ACQUIRE key owner LEASE ms [WRITE] [DEPTH n]          the token, or nil
 *   FLOOR.RELEASE key owner [WRITE] [TOKEN t] [DEPTH n]         0
 *   FLOOR.APPLY key payload            what replicas and the append-only file are sent
 *
 * DEPTH is read, but not used. */

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "redismodule.h"

typedef struct {
    long long token;    /* microseconds since the Unix epoch, at least */
    long long deadline; /* milliseconds since the Unix epoch */
    size_t len;
    char owner[];
} Hold;

static RedisModuleType *type;
static long long last_token;
/* The hold that the module itself deletes at the moment: `unlinked` ignores it. */
static Hold *removing;

static long long epoch_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static Hold *hold_of(const char *owner, size_t len, long long token, long long deadline) {
    Hold *hold = RedisModule_Alloc(sizeof(Hold) + len);
    hold->token = token;
    hold->deadline = deadline;
    hold->len = len;
    memcpy(hold->owner, owner, len);
    return hold;
}

/* The options that may follow the owner. */
typedef struct {
    long long lease, token, depth;
} Words;

static int read_words(RedisModuleString **argv, int argc, Words *said) {
    for (int i = 3; i < argc; i++) {
        const char *word = RedisModule_StringPtrLen(argv[i], NULL);
        long long *number = strcasecmp(word, "LEASE") == 0   ? &said->lease
                            : strcasecmp(word, "TOKEN") == 0 ? &said->token
                            : strcasecmp(word, "DEPTH") == 0 ? &said->depth
                                                             : NULL;
        if (number == NULL && strcasecmp(word, "WRITE") == 0) continue;
        if (number == NULL || ++i == argc ||
            RedisModule_StringToLongLong(argv[i], number) != REDISMODULE_OK || *number < 0)
            return REDISMODULE_ERR;
    }
    return REDISMODULE_OK;
}

static int acquire(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Words said = {0};
    if (argc < 5) return RedisModule_WrongArity(ctx);
    if (read_words(argv, argc, &said) != REDISMODULE_OK || said.lease < 1)
        return RedisModule_ReplyWithError(ctx, "ERR LEASE must be a number of milliseconds");
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE);
    if (RedisModule_KeyType(key) != REDISMODULE_KEYTYPE_EMPTY) {
        RedisModule_CloseKey(key);
        return RedisModule_ReplyWithNull(ctx);
    }
    size_t len;
    const char *owner = RedisModule_StringPtrLen(argv[2], &len);
    long long now = epoch_us();
    last_token = last_token + 1 > now ? last_token + 1 : now;
    Hold *hold = hold_of(owner, len, last_token, now / 1000 + said.lease);
    RedisModule_ModuleTypeSetValue(key, type, hold);
    RedisModule_SetAbsExpire(key, hold->deadline);
    RedisModule_CloseKey(key);
    RedisModule_Replicate(ctx, "FLOOR.APPLY", "sb", argv[1], (char *)hold, sizeof(Hold) + len);
    RedisModule_SignalModifiedKey(ctx, argv[1]);
    RedisModule_NotifyKeyspaceEvent(ctx, REDISMODULE_NOTIFY_MODULE, "floor.acquired", argv[1]);
    return RedisModule_ReplyWithLongLong(ctx, last_token);
}

static int release(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Words said = {0};
    if (argc < 3) return RedisModule_WrongArity(ctx);
    if (read_words(argv, argc, &said) != REDISMODULE_OK)
        return RedisModule_ReplyWithError(ctx, "ERR TOKEN must be a number");
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE);
    size_t len;
    const char *owner = RedisModule_StringPtrLen(argv[2], &len);
    Hold *hold =
        RedisModule_ModuleTypeGetType(key) == type ? RedisModule_ModuleTypeGetValue(key) : NULL;
    if (hold == NULL || hold->len != len || memcmp(hold->owner, owner, len) != 0 ||
        (said.token != 0 && said.token != hold->token)) {
        RedisModule_CloseKey(key);
        return RedisModule_ReplyWithError(ctx, "NOTHELD");
    }
    removing = hold;
    RedisModule_DeleteKey(key);
    removing = NULL;
    RedisModule_CloseKey(key);
    RedisModule_ReplicateVerbatim(ctx);
    RedisModule_SignalModifiedKey(ctx, argv[1]);
    RedisModule_NotifyKeyspaceEvent(ctx, REDISMODULE_NOTIFY_MODULE, "floor.released", argv[1]);
    return RedisModule_ReplyWithLongLong(ctx, 0);
}

static int apply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3) return RedisModule_WrongArity(ctx);
    size_t len;
    const char *bytes = RedisModule_StringPtrLen(argv[2], &len);
    Hold head;
    if (len < sizeof(Hold)) return RedisModule_ReplyWithError(ctx, "ERR malformed payload");
    memcpy(&head, bytes, sizeof(Hold));
    if (head.len != len - sizeof(Hold)) return RedisModule_ReplyWithError(ctx, "ERR malformed payload");
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE);
    RedisModule_ModuleTypeSetValue(
        key, type, hold_of(bytes + sizeof(Hold), head.len, head.token, head.deadline));
    RedisModule_SetAbsExpire(key, head.deadline);
    RedisModule_CloseKey(key);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static void unlinked(RedisModuleString *key, const void *value) {
    (void)key;
    /* A module must notice keys that others remove. This one has no waiters to inform. */
    if (value != removing) last_token++;
}

static void save(RedisModuleIO *io, void *value) {
    Hold *hold = value;
    RedisModule_SaveSigned(io, hold->token);
    RedisModule_SaveSigned(io, hold->deadline);
    RedisModule_SaveStringBuffer(io, hold->owner, hold->len);
}

static void *load(RedisModuleIO *io, int version) {
    (void)version;
    long long token = RedisModule_LoadSigned(io), deadline = RedisModule_LoadSigned(io);
    size_t len;
    char *owner = RedisModule_LoadStringBuffer(io, &len);
    Hold *hold = hold_of(owner, len, token, deadline);
    RedisModule_Free(owner);
    return hold;
}

static void free_hold(void *value) { RedisModule_Free(value); }

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    if (RedisModule_Init(ctx, "floor", 1, REDISMODULE_APIVER_1) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    RedisModule_SetModuleOptions(ctx, REDISMODULE_OPTIONS_HANDLE_IO_ERRORS |
                                          REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED);
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = load,
        .rdb_save = save,
        .free = free_hold,
        .unlink = unlinked,
    };
    type = RedisModule_CreateDataType(ctx, "floor-key", 0, &methods);
    if (type == NULL) return REDISMODULE_ERR;
    struct {
        const char *name;
        RedisModuleCmdFunc run;
    } commands[] = {
        {"floor.acquire", acquire}, {"floor.release", release}, {"floor.apply", apply}};
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (RedisModule_CreateCommand(ctx, commands[i].name, commands[i].run, "write fast", 1, 1,
                                      1) != REDISMODULE_OK)
            return REDISMODULE_ERR;
    return REDISMODULE_OK;
}
