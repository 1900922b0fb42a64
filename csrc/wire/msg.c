/* Each message is one function that is both reader and writer: `field_*` moves a value in the
 * direction of the cursor. So the two can never disagree, and a field has one line. */
#include "wire/msg.h"

#include "base/err.h"
#include "wire/msg_fields.h"

bool round_id_equal(struct round_id a, struct round_id b)
{
    return a.round == b.round && a.attempt == b.attempt && epoch_compare(a.epoch, b.epoch) == 0;
}

const char *standing_name(enum member_standing standing)
{
    static const char *const names[STANDING_COUNT] = {
        [STANDING_JOINING] = "joining",
        [STANDING_CATCHING_UP] = "catching up",
        [STANDING_MEMBER] = "training",
        [STANDING_READY] = "ready",
        [STANDING_EXCHANGING] = "exchanging",
        [STANDING_DONE] = "done",
        [STANDING_LEFT] = "left",
        [STANDING_LOST] = "lost",
    };
    return (unsigned)standing < STANDING_COUNT ? names[standing] : "?";
}

static void fields_epoch(struct fields *f, struct epoch *epoch)
{
    FIELD_UINT(f, "incarnation", epoch->incarnation, 8);
    FIELD_UINT(f, "counter", epoch->counter, 4);
}

static void fields_round_id(struct fields *f, struct round_id *id)
{
    fields_epoch(f, &id->epoch);
    FIELD_UINT(f, "round", id->round, 8);
    FIELD_UINT(f, "attempt", id->attempt, 4);
}

static void fields_settings(struct fields *f, struct msg_settings *settings)
{
    FIELD_TEXT(f, "interval", settings->interval);
    FIELD_TEXT(f, "outer", settings->outer);
    FIELD_TEXT(f, "codec", settings->codec);
    FIELD_TEXT(f, "versions", settings->versions);
    FIELD_TEXT(f, "solo_version", settings->solo_version);
    FIELD_UINT(f, "layout_hash", settings->layout_hash, 8);
    FIELD_UINT(f, "tensor_count", settings->tensor_count, 4);
    for (uint32_t i = 0; i < MSG_SECTIONS; i++) {
        FIELD_UINT(f, "elements", settings->elements[i], 8);
    }
}

static void fields_identity(struct fields *f, struct msg_identity *identity)
{
    FIELD_UINT(f, "node_rank", identity->node_rank, 4);
    FIELD_UINT(f, "device_count", identity->device_count, 4);
    FIELD_UINT(f, "instance", identity->instance, 8);
    FIELD_TEXT(f, "name", identity->name);
    FIELD_TEXT(f, "address", identity->address);
}

static void fields_held(struct fields *f, struct msg_held *held)
{
    FIELD_BOOL(f, "held", held->held);
    FIELD_UINT(f, "version", held->version, 8);
    FIELD_UINT(f, "digest", held->digest, 8);
    FIELD_UINT(f, "job_step", held->job_step, 8);
}

static void fields_join(struct fields *f, struct msg_join *join)
{
    FIELD_TEXT(f, "job_id", join->job_id);
    fields_identity(f, &join->identity);
    fields_settings(f, &join->settings);
    fields_held(f, &join->held);
    FIELD_BOOL(f, "returning", join->returning);
    FIELD_BOOL(f, "founder", join->founder);
    FIELD_BOOL(f, "pending", join->pending);
    fields_epoch(f, &join->epoch);
    fields_round_id(f, &join->committed);
    fields_round_id(f, &join->doubt);
    FIELD_UINT(f, "doubt_digest", join->doubt_digest, 8);
    FIELD_COUNT(f, "epoch_count", join->epoch_count, SOLO_MEMBERS_MAX);
    for (uint32_t i = 0; f->ok && i < join->epoch_count; i++) {
        FIELD_UINT(f, "epoch_ranks", join->epoch_ranks[i], 4);
    }
}

static void fields_admit(struct fields *f, struct msg_admit *admit)
{
    FIELD_UINT(f, "incarnation", admit->incarnation, 8);
    FIELD_UINT(f, "lease_ms", admit->lease_ms, 4);
    FIELD_UINT(f, "timeout_ms", admit->timeout_ms, 4);
    FIELD_UINT(f, "version", admit->version, 8);
}

static void fields_refuse(struct fields *f, struct msg_refuse *refuse)
{
    FIELD_INT(f, "rc", refuse->rc);
    FIELD_UINT(f, "retry_ms", refuse->retry_ms, 4);
    FIELD_TEXT(f, "text", refuse->text);
}

static void fields_members(struct fields *f, struct msg_members *members)
{
    fields_epoch(f, &members->epoch);
    FIELD_UINT(f, "version", members->version, 8);
    FIELD_UINT(f, "job_step", members->job_step, 8);
    FIELD_COUNT(f, "listed_count", members->listed_count, SOLO_MEMBERS_MAX);
    FIELD_COUNT(f, "count", members->count, SOLO_MEMBERS_MAX);
    if (members->listed_count > members->count) {
        f->ok = false;
    }
    for (uint32_t i = 0; f->ok && i < members->count; i++) {
        fields_identity(f, &members->rows[i].identity);
        FIELD_BOOL(f, "founder", members->rows[i].founder);
        members->rows[i].listed = i < members->listed_count;
    }
    FIELD_COUNT(f, "gone_count", members->gone_count, MSG_GONE_MAX);
    for (uint32_t i = 0; f->ok && i < members->gone_count; i++) {
        FIELD_UINT(f, "node_rank", members->gone[i].node_rank, 4);
        FIELD_BOOL(f, "goodbye", members->gone[i].goodbye);
        FIELD_TEXT(f, "text", members->gone[i].text);
    }
}

static void fields_ready(struct fields *f, struct msg_ready *ready)
{
    FIELD_UINT(f, "version", ready->version, 8);
    FIELD_UINT(f, "digest", ready->digest, 8);
    FIELD_UINT(f, "weight", ready->weight, 8);
    FIELD_UINT(f, "steps", ready->steps, 8);
    FIELD_DOUBLE(f, "lr_sum", ready->lr_sum);
    FIELD_BOOL(f, "final", ready->final);
}

static void fields_begin(struct fields *f, struct msg_begin *begin)
{
    fields_round_id(f, &begin->id);
    FIELD_UINT(f, "version", begin->version, 8);
    FIELD_DOUBLE(f, "lr_sum", begin->lr_sum);
    FIELD_DOUBLE(f, "steps", begin->steps);
    FIELD_UINT(f, "job_step", begin->job_step, 8);
    FIELD_UINT(f, "stall_ms", begin->stall_ms, 4);
    FIELD_COUNT(f, "count", begin->count, SOLO_MEMBERS_MAX);
    for (uint32_t i = 0; f->ok && i < begin->count; i++) {
        FIELD_UINT(f, "weights", begin->weights[i], 8);
    }
}

static void fields_done(struct fields *f, struct msg_done *done)
{
    fields_round_id(f, &done->id);
    FIELD_UINT(f, "mean_digest", done->mean_digest, 8);
    FIELD_UINT(f, "delta_digest", done->delta_digest, 8);
    FIELD_UINT(f, "sent_bytes", done->sent_bytes, 8);
    FIELD_UINT(f, "received_bytes", done->received_bytes, 8);
    FIELD_UINT(f, "wait_us", done->wait_us, 8);
    FIELD_UINT(f, "exchange_us", done->exchange_us, 8);
    FIELD_UINT(f, "apply_us", done->apply_us, 8);
}

static void fields_fault(struct fields *f, struct msg_fault *fault)
{
    fields_round_id(f, &fault->id);
    FIELD_ENUM(f, "kind", fault->kind, enum fault_kind, FAULT_NONFINITE, FAULT_LOCAL);
    FIELD_UINT(f, "rank", fault->rank, 4);
    field_raw(f, "owed", fault->owed, sizeof fault->owed);
    FIELD_TEXT(f, "text", fault->text);
}

static void fields_verdict(struct fields *f, struct msg_verdict *verdict)
{
    fields_round_id(f, &verdict->id);
    FIELD_UINT(f, "mean_digest", verdict->mean_digest, 8);
    FIELD_BOOL(f, "again", verdict->again);
    FIELD_INT(f, "rc", verdict->rc);
    FIELD_UINT(f, "rank", verdict->rank, 4);
    FIELD_TEXT(f, "text", verdict->text);
}

static void fields_heartbeat(struct fields *f, struct msg_heartbeat *heartbeat)
{
    FIELD_UINT(f, "sent_us", heartbeat->sent_us, 8);
    FIELD_UINT(f, "rtt_us", heartbeat->rtt_us, 4);
    FIELD_UINT(f, "chunks", heartbeat->chunks, 4);
}

static void fields_leave(struct fields *f, struct msg_leave *leave)
{
    FIELD_BOOL(f, "finished", leave->finished);
    FIELD_TEXT(f, "text", leave->text);
}

static void fields_catchup(struct fields *f, struct msg_catchup *catchup)
{
    FIELD_UINT(f, "version", catchup->version, 8);
    FIELD_UINT(f, "digest", catchup->digest, 8);
    FIELD_UINT(f, "job_step", catchup->job_step, 8);
    FIELD_BOOL(f, "own", catchup->own);
    FIELD_BOOL(f, "founder", catchup->founder);
    FIELD_COUNT(f, "donor_count", catchup->donor_count, MSG_DONORS_MAX);
    for (uint32_t i = 0; f->ok && i < catchup->donor_count; i++) {
        FIELD_UINT(f, "donors", catchup->donors[i], 4);
    }
}

static void fields_caught_up(struct fields *f, struct msg_caught_up *caught_up)
{
    FIELD_UINT(f, "version", caught_up->version, 8);
    FIELD_UINT(f, "digest", caught_up->digest, 8);
    FIELD_UINT(f, "job_step", caught_up->job_step, 8);
    FIELD_BOOL(f, "held", caught_up->held);
    FIELD_TEXT(f, "text", caught_up->text);
}

static void fields_end(struct fields *f, struct msg_end *end)
{
    FIELD_INT(f, "rc", end->rc);
    FIELD_TEXT(f, "text", end->text);
}

static void fields_link(struct fields *f, struct msg_link *link)
{
    FIELD_UINT(f, "node_rank", link->node_rank, 4);
    FIELD_UINT(f, "stream", link->stream, 4);
    FIELD_UINT(f, "stream_count", link->stream_count, 4);
    FIELD_UINT(f, "instance", link->instance, 8);
    FIELD_UINT(f, "to_instance", link->to_instance, 8);
}

static void fields_status(struct fields *f, struct msg_status *status)
{
    FIELD_TEXT(f, "job_id", status->job_id);
    FIELD_TEXT(f, "solo_version", status->solo_version);
    FIELD_TEXT(f, "interval", status->arguments.interval);
    FIELD_TEXT(f, "outer", status->arguments.outer);
    FIELD_TEXT(f, "codec", status->arguments.codec);
    FIELD_TEXT(f, "versions", status->arguments.versions);
    FIELD_UINT(f, "settings_rank", status->settings_rank, 4);
    FIELD_TEXT(f, "master_name", status->master_name);
    FIELD_TEXT(f, "master_address", status->master_address);
    FIELD_UINT(f, "master_pid", status->master_pid, 8);
    FIELD_UINT(f, "wall_us", status->wall_us, 8);
    FIELD_UINT(f, "round", status->round, 8);
    FIELD_UINT(f, "version", status->version, 8);
    fields_epoch(f, &status->epoch);
    FIELD_UINT(f, "min_nodes", status->min_nodes, 4);
    FIELD_UINT(f, "expected_nodes", status->expected_nodes, 4);
    FIELD_UINT(f, "member_count", status->member_count, 4);
    FIELD_BOOL(f, "over", status->over);
    FIELD_COUNT(f, "count", status->count, SOLO_MEMBERS_MAX);
    for (uint32_t i = 0; f->ok && i < status->count; i++) {
        struct msg_status_row *row = &status->rows[i];
        fields_identity(f, &row->identity);
        FIELD_ENUM(f, "standing", row->standing, enum member_standing, STANDING_JOINING,
                   STANDING_LOST);
        FIELD_BOOL(f, "listed", row->listed);
        FIELD_UINT(f, "version", row->version, 8);
        FIELD_UINT(f, "last_seen_ms", row->last_seen_ms, 8);
        FIELD_TEXT(f, "left", row->left);
    }
}

/* By type; a type that carries no message has none. */
static bool fields_of_member(struct fields *f, struct msg *msg)
{
    switch ((int)msg->type) {
    case FRAME_JOIN:
        fields_join(f, &msg->as.join);
        return true;
    case FRAME_READY:
        fields_ready(f, &msg->as.ready);
        return true;
    case FRAME_DONE:
        fields_done(f, &msg->as.done);
        return true;
    case FRAME_FAULT:
        fields_fault(f, &msg->as.fault);
        return true;
    case FRAME_HEARTBEAT:
    case FRAME_HEARTBEAT_ACK:
        fields_heartbeat(f, &msg->as.heartbeat);
        return true;
    case FRAME_LEAVE:
        fields_leave(f, &msg->as.leave);
        return true;
    case FRAME_CAUGHT_UP:
        fields_caught_up(f, &msg->as.caught_up);
        return true;
    case FRAME_LINK:
        fields_link(f, &msg->as.link);
        return true;
    case FRAME_SUMMON:
    case FRAME_STATUS_ASK:
        return true; /* the type says it all */
    default:
        return false;
    }
}

static bool fields_of_master(struct fields *f, struct msg *msg)
{
    switch ((int)msg->type) {
    case FRAME_ADMIT:
        fields_admit(f, &msg->as.admit);
        return true;
    case FRAME_REFUSE:
        fields_refuse(f, &msg->as.refuse);
        return true;
    case FRAME_MEMBERS:
        if (msg->table.members) {
            fields_members(f, msg->table.members);
        }
        return msg->table.members != NULL;
    case FRAME_BEGIN:
        fields_begin(f, &msg->as.begin);
        return true;
    case FRAME_COMMIT:
    case FRAME_ABORT:
        fields_verdict(f, &msg->as.verdict);
        return true;
    case FRAME_CATCHUP:
        fields_catchup(f, &msg->as.catchup);
        return true;
    case FRAME_END:
        fields_end(f, &msg->as.end);
        return true;
    case FRAME_STATUS:
        if (msg->table.status) {
            fields_status(f, msg->table.status);
        }
        return msg->table.status != NULL;
    default:
        return false;
    }
}

static void fields_msg(struct fields *f, struct msg *msg)
{
    f->ok = (fields_of_member(f, msg) || fields_of_master(f, msg)) && f->ok;
}

int msg_encode(const struct msg *msg, void *bytes, size_t capacity)
{
    struct fields fields = fields_writer(bytes, capacity);
    fields_msg(&fields, (struct msg *)(uintptr_t)msg); /* a writer changes nothing */
    size_t size = fields_size(&fields, bytes);
    if (!fields.ok || size > frame_size_max(msg->type)) {
        return err_set(SOLO_ELIMIT, "a %s message does not fit its limit", frame_name(msg->type));
    }
    return (int)size;
}

int msg_decode(enum frame_type type, const void *bytes, size_t size, struct msg *out)
{
    struct fields fields = fields_reader(bytes, size);
    out->type = type;
    fields_msg(&fields, out);
    if (!fields.ok || fields.reader.at != fields.reader.end) {
        return err_set(SOLO_EPEER, "a %s message that breaks the rules of its fields",
                       frame_name(type));
    }
    return 0;
}

int msg_describe(enum frame_type type,
                 void (*field)(void *context, const char *name, const char *kind), void *context)
{
    static struct msg_members members; /* tables of one row: the field names are wanted */
    static struct msg_status status;
    static struct msg msg;
    memset(&msg, 0, sizeof msg);
    memset(&members, 0, sizeof members);
    memset(&status, 0, sizeof status);
    msg.type = type;
    if (type == FRAME_JOIN) {
        msg.as.join.epoch_count = 1;
    } else if (type == FRAME_BEGIN) {
        msg.as.begin.count = 1;
    } else if (type == FRAME_CATCHUP) {
        msg.as.catchup.donor_count = 1;
    } else if (type == FRAME_MEMBERS) {
        members.listed_count = members.count = members.gone_count = 1;
        msg.table.members = &members;
    } else if (type == FRAME_STATUS) {
        status.count = 1;
        msg.table.status = &status;
    } else if (type == FRAME_FAULT) {
        msg.as.fault.kind = FAULT_LINK;
    }
    static uint8_t bytes[FRAME_MESSAGE_MAX];
    struct fields fields = fields_writer(bytes, sizeof bytes);
    fields.describe = field;
    fields.context = context;
    fields_msg(&fields, &msg);
    return fields.ok ? 0 : SOLO_EINVAL;
}
