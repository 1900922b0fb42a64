/* The schedules of collectives between hosts, run without a socket: ranks are rows of an array,
 * transfers wait in a bag, and a seeded generator says which one arrives next. */
#include "base/rng.h"
#include "check.h"
#include "comm/schedule.h"

enum { RANKS_MAX = 256, WAITING_MAX = 1 << 19 };

struct rank {
    struct schedule schedule;
    struct solo_op op;
    struct solo_part *in, *out;
    uint32_t piece, stage;             /* pieces one at a time: the strictest order */
    uint32_t awaited[SCHEDULE_STAGES]; /* of this piece, by stage */
    uint8_t *scratch;
    bool partial;    /* the input is sums, fp32, of an op of bf16 */
    bool over, late; /* late: it has not come yet, what is sent to it waits */
    bool sends_to[RANKS_MAX];
};

struct letter { /* one transfer under way */
    uint32_t from, to, piece, stage;
    uint64_t bytes;
    uint8_t *payload;
};

static struct rank ranks[RANKS_MAX];
static struct letter bag[WAITING_MAX];
static uint32_t bag_count;
static uint64_t sent_bytes[RANKS_MAX];

static uint8_t *address(struct rank *rank, const struct move *move)
{
    if (move->place == PLACE_SCRATCH) {
        return rank->scratch + move->offset;
    }
    struct solo_part *parts = move->place == PLACE_IN ? rank->in : rank->out;
    return parts ? (uint8_t *)parts[move->part].bytes + move->offset : NULL;
}

static void send_stage(uint32_t from)
{
    static struct move moves[RANKS_MAX];
    struct rank *rank = &ranks[from];
    uint32_t count = schedule_sends(&rank->schedule, rank->piece, rank->stage, moves);
    CHECK(count <= rank->schedule.world);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(bag_count < WAITING_MAX);
        struct letter *letter = &bag[bag_count++];
        *letter = (struct letter){from,        moves[i].peer,  rank->piece,
                                  rank->stage, moves[i].bytes, malloc(moves[i].bytes + 1)};
        if (moves[i].bytes) {
            memcpy(letter->payload, address(rank, &moves[i]), moves[i].bytes);
        }
        sent_bytes[from] += moves[i].bytes;
        rank->sends_to[moves[i].peer] = true;
    }
}

static void begin_piece(uint32_t number)
{
    static struct move moves[RANKS_MAX];
    struct rank *rank = &ranks[number];
    rank->stage = 0;
    for (uint32_t stage = 0; stage < rank->schedule.stages; stage++) {
        rank->awaited[stage] = schedule_receives(&rank->schedule, rank->piece, stage, moves);
    }
    send_stage(number);
}

static void merge(struct rank *rank)
{
    struct merge merge;
    const void *sources[RANKS_MAX];
    if (!schedule_merges(&rank->schedule, rank->piece, rank->stage, &merge)) {
        return;
    }
    for (uint32_t i = 0; i < rank->schedule.world; i++) {
        sources[i] = rank->scratch + schedule_room(&rank->schedule, i);
    }
    sources[rank->schedule.rank] = (uint8_t *)rank->in[merge.in_part].bytes + merge.in_offset;
    uint8_t *out = merge.out_offset == UINT64_MAX
                       ? rank->scratch + schedule_room(&rank->schedule, rank->schedule.rank)
                       : (uint8_t *)rank->out[0].bytes + merge.out_offset;
    struct reduce reduce = op_reduce(&rank->op, rank->schedule.world);
    struct reduce sums = op_reduce_sums(&rank->op);
    uint64_t count = merge.bytes / rank->schedule.element;
    uint8_t *own = rank->scratch + schedule_room(&rank->schedule, rank->schedule.rank);
    reduce_n(rank->partial ? &sums : &reduce, rank->partial ? own : out, sources,
             rank->schedule.world, count, REDUCE_CACHED);
    if (rank->partial) {
        reduce_finish(&reduce, out, own, count);
    }
}

static void advance(uint32_t number)
{
    struct rank *rank = &ranks[number];
    while (!rank->over && rank->awaited[rank->stage] == 0) {
        merge(rank);
        if (++rank->stage < rank->schedule.stages) {
            send_stage(number);
        } else if (++rank->piece < rank->schedule.pieces) {
            begin_piece(number);
        } else {
            rank->over = true;
        }
    }
}

/* A transfer may arrive only at a rank that has come to its piece: elsewhere it waits. */
static bool deliver(const struct letter *letter)
{
    static struct move moves[RANKS_MAX];
    struct rank *rank = &ranks[letter->to];
    CHECK(!rank->over && letter->piece >= rank->piece);
    if (letter->piece > rank->piece || rank->late) {
        return false;
    }
    uint32_t count = schedule_receives(&rank->schedule, letter->piece, letter->stage, moves);
    for (uint32_t i = 0; i < count; i++) {
        if (moves[i].peer == letter->from) {
            CHECK_EQ(moves[i].bytes, letter->bytes);
            if (letter->bytes) {
                memcpy(address(rank, &moves[i]), letter->payload, letter->bytes);
            }
            rank->awaited[letter->stage]--;
            advance(letter->to);
            return true;
        }
    }
    CHECK_FAIL("rank %u expects nothing of rank %u", letter->to, letter->from);
}

static void start_all(uint32_t world)
{
    for (uint32_t i = 0; i < world; i++) {
        struct rank *rank = &ranks[i];
        schedule_init(&rank->schedule, &rank->op, i, world, rank->partial);
        CHECK_EQ(rank->schedule.pieces, ranks[0].schedule.pieces);
        CHECK_EQ(rank->schedule.stages, ranks[0].schedule.stages);
        rank->scratch = malloc(rank->schedule.scratch_bytes + 1);
        rank->piece = 0;
        rank->over = false;
        sent_bytes[i] = 0;
    }
    for (uint32_t i = 0; i < world; i++) {
        if (!ranks[i].late) {
            begin_piece(i);
        }
    }
}

static void run_all(uint32_t world, uint64_t seed)
{
    struct rng rng = {seed};
    start_all(world);
    for (uint32_t i = 0; i < world; i++) {
        advance(i);
    }
    while (bag_count) {
        uint32_t pick = rng_below(&rng, bag_count);
        struct letter letter = bag[pick];
        if (deliver(&letter)) {
            free(letter.payload);
            bag[pick] = bag[--bag_count]; /* deliver may have added behind */
        }
    }
    for (uint32_t i = 0; i < world; i++) {
        CHECK(ranks[i].over);
        free(ranks[i].scratch);
    }
}

/* ---- operations ---------------------------------------------------------------------------------- */

static float value(uint32_t from, uint32_t to, uint64_t index)
{
    return (float)((from * 31 + to * 7 + index * 3) % 17);
}

static struct solo_part part_of(uint64_t count)
{
    return (struct solo_part){calloc(count + 1, sizeof(float)), count};
}

static void free_parts(struct solo_part *parts, uint32_t count)
{
    for (uint32_t i = 0; parts && i < count; i++) {
        free(parts[i].bytes);
    }
    free(parts);
}

/* How many elements rank `from` gives to rank `to`; some are none at all. */
static uint64_t length(enum solo_op_kind kind, uint64_t count, uint32_t from, uint32_t to)
{
    if (kind == SOLO_OP_ALLGATHER) {
        return count * (from % 3);
    }
    if (kind == SOLO_OP_ALLTOALL) {
        return count * ((from + 2 * to) % 4);
    }
    return kind == SOLO_OP_REDUCE_SCATTER ? count + to % 5 : count;
}

static bool wants_parts(enum solo_op_kind kind, bool in, bool root, uint32_t *count, uint32_t world)
{
    static const struct {
        char in, out, in_elsewhere, out_elsewhere; /* parts: 0, 1, or w(orld) */
    } table[] = {
        [SOLO_OP_BARRIER] = {0, 0, 0, 0},          [SOLO_OP_BROADCAST] = {0, 1, 0, 1},
        [SOLO_OP_ALLREDUCE] = {1, 1, 1, 1},        [SOLO_OP_REDUCE] = {1, 1, 1, 0},
        [SOLO_OP_ALLGATHER] = {1, 'w', 1, 'w'},    [SOLO_OP_GATHER] = {1, 'w', 1, 0},
        [SOLO_OP_SCATTER] = {'w', 1, 0, 1},        [SOLO_OP_REDUCE_SCATTER] = {'w', 1, 'w', 1},
        [SOLO_OP_ALLTOALL] = {'w', 'w', 'w', 'w'},
    };
    char parts = in ? (root ? table[kind].in : table[kind].in_elsewhere)
                    : (root ? table[kind].out : table[kind].out_elsewhere);
    *count = parts == 'w' ? world : (uint32_t)parts;
    return *count > 0;
}

static void make_rank(enum solo_op_kind kind, uint32_t world, uint32_t me, uint64_t count,
                      uint32_t root)
{
    struct rank *rank = &ranks[me];
    bool is_root = !op_has_root(kind) || root == me;
    *rank = (struct rank){.op = {.kind = kind, .dtype = SOLO_F32, .root = root}};
    if (wants_parts(kind, true, is_root, &rank->op.in_count, world)) {
        rank->op.in = rank->in = calloc(rank->op.in_count, sizeof *rank->in);
    }
    if (wants_parts(kind, false, is_root, &rank->op.out_count, world)) {
        rank->op.out = rank->out = calloc(rank->op.out_count, sizeof *rank->out);
    }
    for (uint32_t i = 0; i < rank->op.in_count; i++) {
        uint32_t to = rank->op.in_count == 1 ? 0 : i;
        rank->in[i] = part_of(length(kind, count, me, to));
        for (uint64_t k = 0; k < rank->in[i].count; k++) {
            ((float *)rank->in[i].bytes)[k] = value(me, to, k);
        }
    }
    for (uint32_t i = 0; i < rank->op.out_count; i++) {
        uint32_t from = rank->op.out_count == 1 ? root : i;
        rank->out[i] = part_of(length(kind, count, from, me));
    }
    if (kind == SOLO_OP_BROADCAST && me == root) {
        for (uint64_t k = 0; k < count; k++) {
            ((float *)rank->out[0].bytes)[k] = value(me, 0, k);
        }
    }
    struct solo_part from, to;
    if (op_own_copy(&rank->op, me, &from, &to)) {
        memcpy(to.bytes, from.bytes, from.count * sizeof(float));
    }
}

static float expected(enum solo_op_kind kind, uint32_t world, uint32_t me, uint32_t part,
                      uint32_t root, uint64_t k)
{
    if (kind == SOLO_OP_BROADCAST || kind == SOLO_OP_SCATTER) {
        return value(root, kind == SOLO_OP_SCATTER ? me : 0, k);
    }
    if (kind == SOLO_OP_ALLGATHER || kind == SOLO_OP_GATHER || kind == SOLO_OP_ALLTOALL) {
        return value(part, kind == SOLO_OP_ALLTOALL ? me : 0, k);
    }
    float sum = 0;
    for (uint32_t i = 0; i < world; i++) {
        sum += value(i, kind == SOLO_OP_REDUCE_SCATTER ? me : 0, k);
    }
    return sum;
}

static void check_kind(enum solo_op_kind kind, uint32_t world, uint64_t count, uint32_t root,
                       uint64_t seed)
{
    for (uint32_t i = 0; i < world; i++) {
        make_rank(kind, world, i, count, root);
        CHECK_EQ(op_check(&ranks[i].op, i, world), 0);
    }
    run_all(world, seed);
    for (uint32_t i = 0; i < world; i++) {
        for (uint32_t part = 0; part < ranks[i].op.out_count; part++) {
            const float *out = ranks[i].out[part].bytes;
            for (uint64_t k = 0; k < ranks[i].out[part].count; k++) {
                float want = expected(kind, world, i, part, root, k);
                if (out[k] < want || out[k] > want) {
                    CHECK_FAIL("%s of %u ranks, seed %" PRIu64 ": rank %u part %u [%" PRIu64
                               "] is %g, not %g",
                               solo_op_name(kind), world, seed, i, part, k, (double)out[k],
                               (double)want);
                }
            }
        }
    }
    for (uint32_t i = 0; i < world; i++) {
        free_parts(ranks[i].in, ranks[i].op.in_count);
        free_parts(ranks[i].out, ranks[i].op.out_count);
    }
}

TEST(every_collective_is_right_whatever_the_order_of_arrival)
{
    static const uint64_t counts[] = {0, 1, 1000, 9001, 70000, 400001};
    for (uint32_t world = 2; world <= 5; world++) {
        for (int kind = SOLO_OP_BARRIER; kind < SOLO_OP_KIND_COUNT; kind++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                for (uint64_t seed = 1; seed <= 3; seed++) {
                    check_kind((enum solo_op_kind)kind, world, counts[c], (uint32_t)seed % world,
                               seed);
                }
            }
        }
    }
}

TEST(hundreds_of_ranks_come_to_the_same_result)
{
    for (int kind = SOLO_OP_BARRIER; kind < SOLO_OP_KIND_COUNT; kind++) {
        check_kind((enum solo_op_kind)kind, 200, 37, 13, 7);
    }
    check_kind(SOLO_OP_ALLREDUCE, 200, 20011, 0, 8);
    check_kind(SOLO_OP_BROADCAST, 256, 20011, 99, 9);
    check_kind(SOLO_OP_REDUCE, 129, 20011, 128, 10);
}

/* 2 (W - 1) / W of the tensor, within the rounding of slices to cache lines. */
TEST(an_all_reduce_by_owners_sends_no_byte_too_many)
{
    for (uint32_t world = 3; world <= 9; world++) {
        uint64_t count = 1000000;
        check_kind(SOLO_OP_ALLREDUCE, world, count, 0, 3);
        for (uint32_t i = 0; i < world; i++) {
            uint64_t least = 2 * (world - 1) * count * sizeof(float) / world;
            CHECK(sent_bytes[i] <= least + 64 * 4 * world);
        }
    }
}

static void check_partial(uint32_t world, uint64_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < world; i++) {
        make_rank(SOLO_OP_ALLREDUCE, world, i, count, 0);
        ranks[i].op.dtype = SOLO_BF16;
        ranks[i].partial = true;
    }
    run_all(world, seed);
    for (uint32_t i = 0; i < world; i++) {
        const uint16_t *out = ranks[i].out[0].bytes;
        for (uint64_t k = 0; k < count; k++) { /* small whole numbers: exact in bf16 */
            float want = expected(SOLO_OP_ALLREDUCE, world, i, 0, 0, k);
            uint32_t bits;
            memcpy(&bits, &want, sizeof bits);
            CHECK_EQ(out[k], bits >> 16);
        }
        free_parts(ranks[i].in, 1);
        free_parts(ranks[i].out, 1);
    }
}

/* fp32 to the owner and bf16 from it. */
TEST(sums_are_rounded_by_their_owner_and_sent_on_rounded)
{
    static const uint64_t counts[] = {0, 1, 1000, 9001, 70000, 400001};
    for (uint32_t world = 2; world <= 5; world++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            check_partial(world, counts[c], c + 1);
        }
        for (uint32_t i = 0; i < world; i++) {
            uint64_t least = (world - 1) * UINT64_C(400001) * (4 + 2) / world;
            CHECK(sent_bytes[i] <= least + 64 * 8 * world);
        }
    }
}

/* The root sends every byte once, however many there are, and nobody more than it. */
TEST(a_large_broadcast_sends_no_byte_too_many)
{
    for (uint32_t world = 3; world <= 9; world++) {
        uint64_t count = 1000000;
        check_kind(SOLO_OP_BROADCAST, world, count, world / 2, 3);
        for (uint32_t i = 0; i < world; i++) {
            CHECK(sent_bytes[i] <= count * sizeof(float));
        }
    }
}

static void deliver_what_can_be(void)
{
    for (uint32_t i = 0; i < bag_count;) {
        struct letter letter = bag[i];
        bool delivered = deliver(&letter);
        if (delivered) {
            free(letter.payload);
            bag[i] = bag[--bag_count];
        }
        i = delivered ? 0 : i + 1;
    }
}

TEST(nobody_leaves_a_barrier_before_everybody_has_come)
{
    static const uint32_t worlds[] = {2, 3, 16, 17, 33, 100, 256};
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        uint32_t world = worlds[w], late = world * 2 / 3;
        for (uint32_t i = 0; i < world; i++) {
            make_rank(SOLO_OP_BARRIER, world, i, 0, 0);
        }
        ranks[late].late = true;
        start_all(world);
        deliver_what_can_be();
        for (uint32_t i = 0; i < world; i++) {
            CHECK(!ranks[i].over);
        }
        ranks[late].late = false;
        begin_piece(late);
        deliver_what_can_be();
        for (uint32_t i = 0; i < world; i++) {
            CHECK(ranks[i].over);
            free(ranks[i].scratch);
        }
    }
}

TEST(a_barrier_of_many_needs_few_links)
{
    check_kind(SOLO_OP_BARRIER, 256, 0, 0, 5);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t links = 0;
        for (uint32_t to = 0; to < 256; to++) {
            links += ranks[i].sends_to[to] || ranks[to].sends_to[i];
        }
        CHECK(links <= 2 * 8);
    }
}
