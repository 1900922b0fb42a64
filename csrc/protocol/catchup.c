#include "protocol/catchup.h"

#include <string.h>

#include "base/err.h"

/* The momentum exists for what the outer step moves: the two sections of parameters. */
static uint32_t momentum_chunks(const struct plan *plan)
{
    return plan->first_chunk[SOLO_MEAN];
}

uint64_t catchup_memory_bytes(const struct plan_model *model)
{
    struct plan plan;
    return plan_init_state(&plan, model) < 0 ? 0 : 2 * (uint64_t)plan.chunk_count + 8;
}

void catchup_begin(struct catchup *catchup, const struct msg_catchup *order,
                   const struct plan_model *model, bool momentum, void *memory, uint64_t now_us)
{
    uint32_t tries = catchup->version == order->version ? catchup->tries : 0;
    *catchup = (struct catchup){.active = true,
                                .own = order->own,
                                .momentum = momentum,
                                .version = order->version,
                                .digest = order->digest,
                                .job_step = order->job_step,
                                .tries = tries,
                                .began_us = now_us,
                                .progress_us = now_us};
    MUST(plan_init_state(&catchup->plan, model) == 0);
    catchup->total = catchup->plan.chunk_count;
    catchup->total += momentum ? momentum_chunks(&catchup->plan) : 0;
    catchup->chunks = (uint8_t *)memory;
    memset(memory, CHUNK_TO_ASK, catchup->total);
}

static struct catchup_donor *donor_of(struct catchup *catchup, uint32_t peer)
{
    for (uint32_t i = 0; i < catchup->donor_count; i++) {
        if (catchup->donors[i].peer == peer) {
            return &catchup->donors[i];
        }
    }
    return NULL;
}

/* What it was asked is to be asked of another. */
static void release(struct catchup *catchup, struct catchup_donor *donor)
{
    uint8_t asked = (uint8_t)(CHUNK_ASKED + (donor - catchup->donors));
    for (uint32_t i = 0; donor->fetches > 0 && i < catchup->total; i++) {
        if (catchup->chunks[i] == asked) {
            catchup->chunks[i] = CHUNK_TO_ASK;
            donor->fetches--;
            catchup->next = i < catchup->next ? i : catchup->next;
        }
    }
}

void catchup_donor(struct catchup *catchup, uint32_t peer, bool up)
{
    if (!donor_of(catchup, peer) && catchup->donor_count < MSG_DONORS_MAX) {
        catchup->donors[catchup->donor_count++] = (struct catchup_donor){.peer = peer, .up = up};
    }
}

void catchup_link(struct catchup *catchup, uint32_t peer, bool up)
{
    struct catchup_donor *donor = donor_of(catchup, peer);
    if (donor) {
        donor->up = up;
        if (!up) {
            release(catchup, donor);
        }
    }
}

void catchup_no_state(struct catchup *catchup, uint32_t peer)
{
    struct catchup_donor *donor = donor_of(catchup, peer);
    if (donor) {
        donor->gone = true;
        release(catchup, donor);
    }
}

void catchup_silent(struct catchup *catchup)
{
    for (uint32_t i = 0; i < catchup->donor_count; i++) {
        struct catchup_donor *donor = &catchup->donors[i];
        if (donor->fetches > 0 || !donor->up) {
            donor->gone = true;
            release(catchup, donor);
        }
    }
}

static uint32_t number_of(const struct catchup *catchup, const struct frame *frame)
{
    bool momentum = frame->flags & FRAME_MOMENTUM;
    uint32_t limit = momentum ? momentum_chunks(&catchup->plan) : catchup->plan.chunk_count;
    if (frame->chunk >= limit || (momentum && !catchup->momentum)) {
        return UINT32_MAX;
    }
    return frame->chunk + (momentum ? catchup->plan.chunk_count : 0);
}

bool catchup_awaits(const struct catchup *catchup, uint32_t peer, const struct frame *frame)
{
    if (!catchup->active || catchup->adopting || frame->round != catchup->version) {
        return false;
    }
    uint32_t number = number_of(catchup, frame);
    if (number == UINT32_MAX || catchup->chunks[number] < CHUNK_ASKED) {
        return false;
    }
    return catchup->donors[catchup->chunks[number] - CHUNK_ASKED].peer == peer;
}

bool catchup_received(struct catchup *catchup, uint32_t peer, const struct frame *frame,
                      uint64_t now_us)
{
    if (!catchup_awaits(catchup, peer, frame)) {
        return false;
    }
    catchup->chunks[number_of(catchup, frame)] = CHUNK_HERE;
    catchup->here++;
    catchup->progress_us = now_us;
    donor_of(catchup, peer)->fetches--;
    return true;
}

static void adopt(struct catchup *catchup, struct out *out)
{
    catchup->adopting = true;
    struct action *action = out_add(out, ACTION_ADOPT);
    action->version = catchup->version;
    action->flag = catchup->own;
}

static bool ask_one(struct catchup *catchup, uint32_t index, struct out *out)
{
    struct catchup_donor *donor = &catchup->donors[index];
    while (catchup->next < catchup->total && catchup->chunks[catchup->next] != CHUNK_TO_ASK) {
        catchup->next++;
    }
    if (catchup->next == catchup->total || !donor->up || donor->gone ||
        donor->fetches >= CATCHUP_FETCHES_MAX) {
        return false;
    }
    uint32_t number = catchup->next++;
    bool momentum = number >= catchup->plan.chunk_count;
    catchup->chunks[number] = (uint8_t)(CHUNK_ASKED + index);
    donor->fetches++;
    struct action *action = out_add_peer(out, ACTION_FETCH, donor->peer,
                                         momentum ? number - catchup->plan.chunk_count : number);
    action->kind = momentum ? STATE_MOMENTUM : STATE_ANCHOR;
    action->version = catchup->version;
    return true;
}

bool catchup_pump(struct catchup *catchup, struct out *out)
{
    if (!catchup->active || catchup->adopting) {
        return true;
    }
    if (catchup->own || catchup->here == catchup->total) {
        adopt(catchup, out);
        return true;
    }
    bool asked = true;
    while (asked) {
        asked = false;
        for (uint32_t i = 0; i < catchup->donor_count; i++) {
            asked = ask_one(catchup, i, out) || asked;
        }
    }
    for (uint32_t i = 0; i < catchup->donor_count; i++) {
        if (!catchup->donors[i].gone) {
            return true;
        }
    }
    return false;
}
