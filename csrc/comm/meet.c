/* How the ranks of a group meet: cards out, cards in, then shared memory or links. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "comm/group.h"
#include "comm/mail_inside.h"
#include "comm/span.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/nic.h"
#include "os/sock.h"
#include "os/thread.h"

/* ---- our card ---------------------------------------------------------------------------------- */

static void hex_of(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++) {
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    }
}

#define OUTSIDE "192.0.2.1" /* no host has it (RFC 5737): the route to it is the default one */

/* Never from the host's own name, which many systems map to a loopback address: the address from
 * which the store's host is reached is one that the others can reach. */
static int own_address(const struct solo_group_config *config, uint16_t port, char out[80])
{
    struct solo_url store = {.host = OUTSIDE, .port = 1};
    char address[64] = "127.0.0.1";
    if (config->interface && config->interface[0]) {
        TRY(nic_address(config->interface, address, sizeof address));
    } else if (config->store_host && config->store_host[0]) {
        snprintf(store.host, sizeof store.host, "%s", config->store_host);
        TRY(solo_route_address(&store, address, sizeof address));
    } else if (solo_route_address(&store, address, sizeof address) < 0) {
        snprintf(address, sizeof address, "127.0.0.1"); /* no route: a host by itself */
    }
    snprintf(out, 80, strchr(address, ':') ? "tcp://[%s]:%u" : "tcp://%s:%u", address, port);
    return 0;
}

static int write_card(struct solo_group *group, const struct solo_group_config *config,
                      char card_out[SOLO_CARD_MAX])
{
    struct card *card = &group->card;
    char host[CARD_HOST_MAX - 24];
    uint8_t name[16], secret[CARD_SECRET_BYTES];
    host_name(host, sizeof host);
    snprintf(card->host, sizeof card->host, "%s:%" PRIu64, host, host_pid());
    if (config->host_id && config->host_id[0]) {
        snprintf(card->host_id, sizeof card->host_id, "%s", config->host_id);
    } else {
        TRY(card_host_id(card->host_id));
    }
    TRY(host_random(name, sizeof name));
    TRY(host_random(secret, sizeof secret));
    memcpy(card->meeting, "solo-", 5);
    hex_of(name, sizeof name, card->meeting + 5);
    hex_of(secret, sizeof secret, card->secret);
    TRY(shm_listen(card->meeting, &group->meeting_fd));
    struct solo_url any = {.host = ""};
    uint16_t port;
    TRY(sock_listen(&any, &group->listen_fd, &port));
    TRY(own_address(config, port, card->address));
    return card_write(card, card_out);
}

static int check_place(uint32_t rank, uint32_t world)
{
    if (world == 0 || world > SOLO_WORLD_MAX || rank >= world) {
        return err_set(SOLO_EINVAL, "rank %u of %u: a group has 1 to %u ranks", rank, world,
                       SOLO_WORLD_MAX);
    }
    return 0;
}

static int check_config(const struct solo_group_config *config)
{
    if (config->size < sizeof *config) {
        return err_set(SOLO_EVERSION, "solo_group_config is of another version of solo");
    }
    return check_place(config->rank, config->world);
}

int solo_group_prepare(const struct solo_group_config *config, struct solo_group **out,
                       char card_out[SOLO_CARD_MAX])
{
    TRY(check_config(config));
    struct solo_group *group = calloc(1, sizeof *group);
    if (!group) {
        return err_set(SOLO_ENOMEM, "no memory for a group");
    }
    group->rank = config->rank;
    group->world = config->world;
    group->meeting_fd = group->listen_fd = -1;
    group->fork_count = group_fork_count();
    atomic_store(&group->references, 1);
    snprintf(group->name, sizeof group->name, "%s", config->name ? config->name : "group");
    solo_group_set_timeout(group, config->timeout_ms);
    pthread_mutex_init(&group->mutex, NULL);
    condition_init(&group->changed);
    int rc = mail_new(group, &group->mail);
    if (rc == 0) {
        rc = write_card(group, config, card_out);
    }
    if (rc < 0) {
        group_release(group);
        return rc;
    }
    *out = group;
    return 0;
}

int solo_group_place(struct solo_group *group, uint32_t rank, uint32_t world)
{
    TRY(check_place(rank, world));
    if (group->connected) {
        return err_set(SOLO_EINVAL, "group \"%s\" is connected already", group->name);
    }
    group->rank = rank;
    group->world = world;
    return 0;
}

/* ---- the others' cards -------------------------------------------------------------------------- */

static int read_cards(struct solo_group *group, const char *const *texts, struct card *cards)
{
    for (uint32_t i = 0; i < group->world; i++) {
        if (card_read(texts[i], &cards[i]) < 0) {
            return err_set(SOLO_EVERSION, "rank %u runs another version of solo", i);
        }
        uint32_t first = 0;
        while (strcmp(cards[first].host_id, cards[i].host_id) != 0) {
            first++;
        }
        group->hosts += first == i;
    }
    memcpy(group->token, cards[0].secret, sizeof group->token);
    return 0;
}

static int join_board(struct solo_group *group, const struct card *cards, uint64_t deadline_us)
{
    const char *meeting = NULL;
    uint32_t mine = 0;
    group->locals = calloc(group->world, sizeof *group->locals);
    if (!group->locals) {
        return err_set(SOLO_ENOMEM, "no memory for a group of %u", group->world);
    }
    for (uint32_t i = 0; i < group->world; i++) {
        if (strcmp(cards[i].host_id, group->card.host_id) == 0) {
            meeting = meeting ? meeting : cards[i].meeting;
            mine = i == group->rank ? group->local_count : mine;
            group->locals[group->local_count++] = i;
        }
    }
    if (group->local_count == 1) {
        return 0;
    }
    struct board_config config = {.rank = mine,
                                  .ranks = group->local_count,
                                  .global = group->locals,
                                  .meeting = meeting,
                                  .listen_fd = mine == 0 ? group->meeting_fd : -1,
                                  .token = group->token,
                                  .host = group->card.host,
                                  .deadline_us = deadline_us};
    return board_open(&config, &group->board);
}

/* Where every host has as many ranks, each has a counterpart on every other host. Hosts are in
 * the order of their first ranks. */
static int find_across(struct solo_group *group, const struct card *cards)
{
    group->everyone = calloc(group->world, sizeof *group->everyone);
    group->places = calloc(group->world, sizeof *group->places);
    group->hosts_of = calloc(group->world, sizeof *group->hosts_of);
    group->across = calloc(group->hosts, sizeof *group->across);
    if (!group->everyone || !group->across || !group->places || !group->hosts_of) {
        return err_set(SOLO_ENOMEM, "no memory for a group of %u", group->world);
    }
    uint32_t hosts = 0, found = 0;
    for (uint32_t i = 0; i < group->world; i++) {
        uint32_t first = 0;
        while (strcmp(cards[first].host_id, cards[i].host_id) != 0) {
            first++;
        }
        for (uint32_t before = first; before < i; before++) {
            group->places[i] += strcmp(cards[before].host_id, cards[i].host_id) == 0;
        }
        group->everyone[i] = i;
        group->hosts_of[i] = first == i ? hosts++ : group->hosts_of[first];
    }
    for (uint32_t i = 0; i < group->world; i++) {
        if (group->places[i] == group->places[group->rank]) {
            group->across[group->hosts_of[i]] = i;
            found++;
        }
    }
    group->host = group->hosts_of[group->rank];
    bool even = true; /* the last place of each host is the same */
    for (uint32_t place = 0; place < group->local_count; place++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < group->world; i++) {
            count += group->places[i] == place;
        }
        even = even && count == group->hosts;
    }
    if (!even || found != group->hosts || group->local_count * group->hosts != group->world) {
        free(group->across);
        group->across = NULL;
    }
    return 0;
}

static int join_net(struct solo_group *group, const struct card *cards)
{
    struct net_config config = {.rank = group->rank,
                                .world = group->world,
                                .cards = cards,
                                .listen_fd = group->listen_fd,
                                .token = group->token,
                                .name = group->name};
    group->listen_fd = -1; /* the net's */
    TRY(net_open(&config, &group->net));
    net_mail_serve(group->mail);
    TRY(find_across(group, cards));
    return span_new(group->net, group->world, &group->span);
}

static int join(struct solo_group *group, const char *const *texts, uint64_t deadline_us)
{
    struct card *cards = calloc(group->world, sizeof *cards);
    if (!cards) {
        return err_set(SOLO_ENOMEM, "no memory for a group of %u", group->world);
    }
    int rc = read_cards(group, texts, cards);
    if (rc == 0) {
        rc = join_board(group, cards, deadline_us);
    }
    if (rc == 0 && group->hosts > 1) {
        rc = join_net(group, cards);
    }
    free(cards);
    return rc;
}

static void stop_listening(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

int solo_group_connect(struct solo_group *group, const char *const *cards, uint32_t timeout_ms)
{
    if (group->connected || group_forked(group)) {
        return err_set(SOLO_EINVAL, "group \"%s\" is connected already, or of another process",
                       group->name);
    }
    uint64_t deadline_us = group_deadline(group, timeout_ms);
    int rc = join(group, cards, deadline_us);
    stop_listening(&group->meeting_fd);
    stop_listening(&group->listen_fd);
    if (rc < 0) {
        return group_break(group, rc, err_text());
    }
    group->connected = true;
    struct solo_op meet = {.kind = SOLO_OP_BARRIER, .dtype = SOLO_BYTES};
    return group_execute(group, &meet, deadline_us);
}
