/* fake_nccl.c - a library with NCCL's names that works over memory shared by the processes of one
 * host, on streams of the fake device. As NCCL does, it waits for ever for a rank that does not
 * come, until it is aborted; and it compares nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_stream.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, IN_PROGRESS = 7 };
enum { SUM, PRODUCT, MAX, MIN, AVERAGE, FACTORS };
enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16 };

#define RANKS_MAX  4
#define AREA_BYTES (16u << 20)
#define BOX_BYTES  (12u << 20)
#define OPS_MAX    64

struct id {
    char name[128];
};

struct shared {
    _Atomic uint32_t came, turn;
    _Atomic uint32_t sent[RANKS_MAX][RANKS_MAX], taken[RANKS_MAX][RANKS_MAX];
    uint64_t bytes[RANKS_MAX][RANKS_MAX];
};

struct comm {
    struct shared *shared;
    uint8_t *areas, *boxes;
    int rank, world;
    _Atomic bool aborted, ready;
    double factor;
};

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

struct op {
    enum kind kind;
    const void *in;
    void *out;
    size_t count;
    int type, op, peer;
    struct comm *comm;
    struct fake_stream *stream;
};

struct batch {
    uint32_t count;
    struct op ops[OPS_MAX];
};

static __thread int depth;
static __thread struct batch open_batch;

static size_t size_of(int type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

/* ---- waiting -------------------------------------------------------------------------------- */

static bool wait_for(struct comm *comm, _Atomic uint32_t *value, uint32_t least)
{
    while ((int32_t)(atomic_load(value) - least) < 0) {
        if (atomic_load(&comm->aborted)) {
            return false;
        }
        usleep(20);
    }
    return true;
}

static bool meet(struct comm *comm)
{
    uint32_t mine = atomic_fetch_add(&comm->shared->came, 1);
    uint32_t round = mine / (uint32_t)comm->world + 1;
    return wait_for(comm, &comm->shared->came, round * (uint32_t)comm->world);
}

/* ---- sums ----------------------------------------------------------------------------------- */

static double number(const uint8_t *at, int type, size_t i)
{
    switch (type) {
    case F32:
        return ((const float *)(const void *)at)[i];
    case F64:
        return ((const double *)(const void *)at)[i];
    case I32:
        return ((const int32_t *)(const void *)at)[i];
    case I64:
        return (double)((const int64_t *)(const void *)at)[i];
    default:
        return at[i];
    }
}

static void put(uint8_t *at, int type, size_t i, double value)
{
    switch (type) {
    case F32:
        ((float *)(void *)at)[i] = (float)value;
        break;
    case F64:
        ((double *)(void *)at)[i] = value;
        break;
    case I32:
        ((int32_t *)(void *)at)[i] = (int32_t)value;
        break;
    case I64:
        ((int64_t *)(void *)at)[i] = (int64_t)value;
        break;
    default:
        at[i] = (uint8_t)value;
    }
}

static double join(const struct comm *comm, int op, double a, double b)
{
    (void)comm;
    switch (op) {
    case PRODUCT:
        return a * b;
    case MAX:
        return a > b ? a : b;
    case MIN:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

/* Reduces elements [first, first + count) of all areas. */
static void reduce_all(const struct op *op, size_t first, size_t count, uint8_t *out)
{
    const struct comm *comm = op->comm;
    for (size_t i = 0; i < count; i++) {
        double value = number(comm->areas, op->type, first + i);
        for (int rank = 1; rank < comm->world; rank++) {
            const uint8_t *area = comm->areas + (size_t)rank * AREA_BYTES;
            value = join(comm, op->op, value, number(area, op->type, first + i));
        }
        value = op->op == AVERAGE ? value / comm->world : value;
        value = op->op == FACTORS ? value * comm->factor : value;
        put(out, op->type, i, value);
    }
}

/* ---- on the stream -------------------------------------------------------------------------- */

static void run_collective(const struct op *op)
{
    struct comm *comm = op->comm;
    uint8_t *mine = comm->areas + (size_t)comm->rank * AREA_BYTES;
    size_t bytes = op->count * size_of(op->type);
    size_t given = op->kind == REDUCE_SCATTER ? bytes * (size_t)comm->world : bytes;
    if (op->kind != BROADCAST || op->peer == comm->rank) {
        memcpy(mine, op->in, given);
    }
    if (!meet(comm)) {
        return;
    }
    switch (op->kind) {
    case ALL_REDUCE:
        reduce_all(op, 0, op->count, op->out);
        break;
    case REDUCE:
        if (op->peer == comm->rank) {
            reduce_all(op, 0, op->count, op->out);
        }
        break;
    case BROADCAST:
        memcpy(op->out, comm->areas + (size_t)op->peer * AREA_BYTES, bytes);
        break;
    case ALL_GATHER:
        for (int rank = 0; rank < comm->world; rank++) {
            memcpy((uint8_t *)op->out + (size_t)rank * bytes,
                   comm->areas + (size_t)rank * AREA_BYTES, bytes);
        }
        break;
    case REDUCE_SCATTER:
        reduce_all(op, (size_t)comm->rank * op->count, op->count, op->out);
        break;
    case SEND:
    case RECEIVE:
        break;
    }
    meet(comm);
}

static uint8_t *box(const struct comm *comm, int from, int to)
{
    return comm->boxes + ((size_t)from * RANKS_MAX + (size_t)to) * BOX_BYTES;
}

static void run_send(const struct op *op)
{
    struct comm *comm = op->comm;
    struct shared *shared = comm->shared;
    uint32_t number_sent = atomic_load(&shared->sent[comm->rank][op->peer]);
    if (wait_for(comm, &shared->taken[comm->rank][op->peer], number_sent)) {
        memcpy(box(comm, comm->rank, op->peer), op->in, op->count * size_of(op->type));
        atomic_store(&shared->sent[comm->rank][op->peer], number_sent + 1);
    }
}

static void run_receive(const struct op *op)
{
    struct comm *comm = op->comm;
    struct shared *shared = comm->shared;
    uint32_t number_taken = atomic_load(&shared->taken[op->peer][comm->rank]);
    if (wait_for(comm, &shared->sent[op->peer][comm->rank], number_taken + 1)) {
        memcpy(op->out, box(comm, op->peer, comm->rank), op->count * size_of(op->type));
        atomic_store(&shared->taken[op->peer][comm->rank], number_taken + 1);
    }
}

static void run_batch(void *context)
{
    struct batch *batch = context;
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->ops[i].kind == SEND) {
            run_send(&batch->ops[i]);
        } else if (batch->ops[i].kind != RECEIVE) {
            run_collective(&batch->ops[i]);
        }
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->ops[i].kind == RECEIVE) {
            run_receive(&batch->ops[i]);
        }
    }
    free(batch);
}

static int flush(void)
{
    if (open_batch.count == 0) {
        return SUCCESS;
    }
    struct batch *batch = malloc(sizeof *batch);
    if (!batch) {
        abort();
    }
    *batch = open_batch;
    open_batch.count = 0;
    struct fake_stream *stream = batch->ops[0].stream;
    stream->enqueue(stream, run_batch, batch);
    return SUCCESS;
}

static int give(struct op op)
{
    if (open_batch.count == OPS_MAX || op.comm->world > RANKS_MAX ||
        op.count * size_of(op.type) > (op.kind >= SEND ? BOX_BYTES : AREA_BYTES)) {
        return INVALID_ARGUMENT;
    }
    open_batch.ops[open_batch.count++] = op;
    return depth ? SUCCESS : flush();
}

/* ---- NCCL's names --------------------------------------------------------------------------- */

int ncclGetVersion(int *version)
{
    *version = 21400;
    return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    return result == INVALID_ARGUMENT ? "invalid argument" : "fake error";
}

int ncclGetUniqueId(struct id *id)
{
    snprintf(id->name, sizeof id->name, "/dev/shm/fake-nccl-%d-%p", (int)getpid(), (void *)id);
    return SUCCESS;
}

int ncclCommInitRankConfig(struct comm **out, int world, struct id id, int rank, void *config)
{
    (void)config;
    size_t head = (sizeof(struct shared) + 4095) & ~(size_t)4095;
    size_t size = head + (size_t)RANKS_MAX * AREA_BYTES + (size_t)RANKS_MAX * RANKS_MAX * BOX_BYTES;
    int fd = open(id.name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct comm *comm = calloc(1, sizeof *comm);
    if (fd < 0 || !comm || ftruncate(fd, (off_t)size) < 0) {
        return INVALID_ARGUMENT;
    }
    uint8_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) {
        return INVALID_ARGUMENT;
    }
    *comm = (struct comm){.shared = (struct shared *)(void *)at,
                          .areas = at + head,
                          .boxes = at + head + (size_t)RANKS_MAX * AREA_BYTES,
                          .rank = rank,
                          .world = world};
    *out = comm;
    meet(comm);
    unlink(id.name);
    return SUCCESS;
}

int ncclCommDestroy(struct comm *comm)
{
    atomic_store(&comm->aborted, true); /* the memory stays: streams may still look at it */
    return SUCCESS;
}

int ncclCommAbort(struct comm *comm)
{
    atomic_store(&comm->aborted, true);
    return SUCCESS;
}

/* The first question after each call is answered with "not yet", as a communicator that does not
 * block may do. */
int ncclCommGetAsyncError(struct comm *comm, int *error)
{
    bool ready = atomic_load(&comm->ready);
    atomic_store(&comm->ready, !ready);
    *error = ready ? SUCCESS : IN_PROGRESS;
    return SUCCESS;
}

int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

int ncclGroupEnd(void)
{
    return --depth ? SUCCESS : flush();
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, struct comm *comm,
                  struct fake_stream *stream)
{
    return give((struct op){ALL_REDUCE, in, out, count, type, op, 0, comm, stream});
}

int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root,
               struct comm *comm, struct fake_stream *stream)
{
    return give((struct op){REDUCE, in, out, count, type, op, root, comm, stream});
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, struct comm *comm,
                  struct fake_stream *stream)
{
    return give((struct op){BROADCAST, in, out, count, type, SUM, root, comm, stream});
}

int ncclAllGather(const void *in, void *out, size_t count, int type, struct comm *comm,
                  struct fake_stream *stream)
{
    return give((struct op){ALL_GATHER, in, out, count, type, SUM, 0, comm, stream});
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, struct comm *comm,
                      struct fake_stream *stream)
{
    return give((struct op){REDUCE_SCATTER, in, out, count, type, op, 0, comm, stream});
}

int ncclSend(const void *in, size_t count, int type, int peer, struct comm *comm,
             struct fake_stream *stream)
{
    return give((struct op){SEND, in, NULL, count, type, SUM, peer, comm, stream});
}

int ncclRecv(void *out, size_t count, int type, int peer, struct comm *comm,
             struct fake_stream *stream)
{
    return give((struct op){RECEIVE, NULL, out, count, type, SUM, peer, comm, stream});
}

int ncclRedOpCreatePreMulSum(int *op, void *factor, int type, int residence, struct comm *comm)
{
    if (residence != 1) {
        return INVALID_ARGUMENT;
    }
    comm->factor = number(factor, type, 0);
    *op = FACTORS;
    return SUCCESS;
}

int ncclRedOpDestroy(int op, struct comm *comm)
{
    (void)comm;
    return op == FACTORS ? SUCCESS : INVALID_ARGUMENT;
}
