/* master_kit.h - a master's machine under test: what it is told, what it said, whom it closed. */
#ifndef SOLO_TESTS_MASTER_KIT_H
#define SOLO_TESTS_MASTER_KIT_H

#include "check.h"
#include "protocol/master.h"

#define LOG_MAX 4096u

/* What the master sent and told since the last clear(), oldest first. */
static struct {
    uint32_t conn;
    struct msg msg;
} sends[LOG_MAX];
static struct event events[LOG_MAX];
static uint32_t closed[LOG_MAX];
static uint32_t send_count, event_count, closed_count;
static struct msg_members last_members;
static int over_rc;

static struct master master;
static struct master_out out;
static uint64_t now_us;

static inline void clear(void)
{
    send_count = event_count = closed_count = 0;
    over_rc = 1;
}

static inline void feed(struct master_event event)
{
    do {
        event.now_us = now_us;
        CHECK_EQ(master_step(&master, &event, &out), 0);
        for (uint32_t i = 0; i < out.count; i++) {
            const struct master_action *action = &out.actions[i];
            if (action->type == MASTER_SEND) {
                sends[send_count].conn = action->conn;
                sends[send_count++].msg = *action->msg;
                if (action->msg->type == FRAME_MEMBERS) {
                    last_members = *action->msg->table.members;
                }
            } else if (action->type == MASTER_EVENT) {
                events[event_count++] = out.events[action->index];
            } else if (action->type == MASTER_CLOSE) {
                closed[closed_count++] = action->conn;
            } else if (action->type == MASTER_OVER) {
                over_rc = action->rc;
            }
        }
        event = (struct master_event){.type = MASTER_TICK};
    } while (out.more);
}

static inline void tick(uint64_t after_us)
{
    now_us += after_us;
    feed((struct master_event){.type = MASTER_TICK});
}

static inline const struct msg *sent(uint32_t conn, enum frame_type type)
{
    for (uint32_t i = send_count; i-- > 0;) {
        if (sends[i].conn == conn && sends[i].msg.type == type) {
            return &sends[i].msg;
        }
    }
    return NULL;
}

static inline const struct event *told(enum event_kind kind)
{
    for (uint32_t i = 0; i < event_count; i++) {
        if (events[i].kind == kind) {
            return &events[i];
        }
    }
    return NULL;
}

static inline void start(uint32_t min_nodes)
{
    struct master_config config = {.job_id = "job",
                                   .incarnation = 50,
                                   .min_nodes = min_nodes,
                                   .timeout_us = 60000000,
                                   .lease_us = 10000000};
    now_us = 1000000;
    master_init(&master, &config, now_us);
    clear();
}

static inline struct msg join_of(uint32_t rank)
{
    struct msg msg = {.type = FRAME_JOIN};
    struct msg_join *join = &msg.as.join;
    strcpy(join->job_id, "job");
    join->identity.node_rank = rank;
    join->identity.instance = 100 + rank;
    snprintf(join->identity.name, MSG_TEXT_MAX, "host%u", rank);
    snprintf(join->identity.address, MSG_TEXT_MAX, "10.0.0.%u:1", rank);
    strcpy(join->settings.interval, "100");
    strcpy(join->settings.codec, "fp32");
    join->settings.elements[0] = 1000;
    return msg;
}

static inline void say(uint32_t conn, struct msg msg)
{
    feed((struct master_event){.type = MASTER_MESSAGE, .conn = conn, .msg = &msg});
}

static inline void hold(uint32_t conn, uint64_t version, uint64_t digest)
{
    say(conn, (struct msg){.type = FRAME_CAUGHT_UP,
                           .as.caught_up = {.held = true, .version = version, .digest = digest}});
}

static inline void ready(uint32_t conn, uint64_t version, uint64_t digest, uint64_t weight)
{
    say(conn, (struct msg){.type = FRAME_READY,
                           .as.ready = {.version = version,
                                        .digest = digest,
                                        .weight = weight,
                                        .steps = weight / 4,
                                        .lr_sum = 0.5}});
}

static inline void done(uint32_t conn, uint64_t mean, uint64_t delta)
{
    say(conn,
        (struct msg){.type = FRAME_DONE,
                     .as.done = {.id = master.round, .mean_digest = mean, .delta_digest = delta}});
}

/* A job of `count` nodes, conn = rank, all training on version 0 with digest 7. */
static inline void job(uint32_t count)
{
    start(1);
    for (uint32_t i = 0; i < count; i++) {
        say(i, join_of(i));
    }
    tick(MASTER_FOUND_US);
    CHECK(sent(0, FRAME_CATCHUP)->as.catchup.own);
    hold(0, 0, 7);
    for (uint32_t i = 1; i < count; i++) {
        CHECK(!sent(i, FRAME_CATCHUP)->as.catchup.own);
        hold(i, 0, 7);
    }
    tick(MASTER_GATHER_US);
    CHECK_EQ(master.listed_count, count);
    CHECK_EQ(last_members.listed_count, count);
    clear();
}

static inline void all_ready(uint32_t count, uint64_t version, uint64_t digest)
{
    for (uint32_t i = 0; i < count; i++) {
        ready(i, version, digest, 40);
    }
    CHECK_EQ(master.phase, MASTER_EXCHANGING);
}

#endif
