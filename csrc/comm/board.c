#include "comm/board.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "os/clock.h"
#include "os/host.h"

#define PAGE    4096u
#define SPIN_US 4u

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
}

struct layout {
    size_t desk_stride, lengths_stride;
    size_t desks, lengths, tubes, windows, end;
};

static struct layout layout_of(uint32_t ranks)
{
    struct layout at = {0};
    at.desk_stride = pages(sizeof(struct board_desk));
    at.lengths_stride = (2 * ranks * sizeof(uint64_t) + 63) & ~(size_t)63;
    at.desks = pages(sizeof(struct board_fault));
    at.lengths = at.desks + ranks * at.desk_stride;
    at.tubes = pages(at.lengths + 2 * ranks * at.lengths_stride);
    at.windows = at.tubes + (size_t)ranks * ranks * BOARD_TUBE_BYTES;
    at.end = at.windows + 2 * (size_t)ranks * BOARD_SLOT_BYTES;
    return at;
}

size_t board_bytes(uint32_t ranks)
{
    return layout_of(ranks).end;
}

/* What a rank says to the maker of the segment. */
struct greeting {
    char token[2 * CARD_SECRET_BYTES];
    uint32_t rank;
};

static int hand_over(const struct board_config *config, const struct board *board, int socket,
                     bool *come)
{
    struct greeting greeting;
    uint64_t now_us = clock_us();
    uint64_t patience_us = now_us + 2000000;
    TRY(shm_receive_fds(socket, &greeting, sizeof greeting, NULL, 0,
                        patience_us < config->deadline_us ? patience_us : config->deadline_us));
    if (memcmp(greeting.token, config->token, sizeof greeting.token) != 0 ||
        greeting.rank >= config->ranks || come[greeting.rank]) {
        return err_set(SOLO_EAUTH, "a stranger asked for the group's memory");
    }
    uint8_t welcome = 1;
    TRY(shm_send_fds(socket, &welcome, 1, &board->shm.fd, 1, config->deadline_us));
    come[greeting.rank] = true;
    return 0;
}

static int missing(const struct board_config *config, const bool *come)
{
    char names[128] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < config->ranks && used + 16 < sizeof names; i++) {
        if (!come[i]) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%u", used ? ", " : "",
                                     config->global[i]);
        }
    }
    return err_set(SOLO_ETIMEDOUT,
                   "rank %s on this host did not come to open the group: see why it stopped",
                   names);
}

static int make(const struct board_config *config, struct board *board)
{
    TRY(shm_create("solo-group", board_bytes(config->ranks), &board->shm));
    bool come[SOLO_WORLD_MAX] = {false};
    come[config->rank] = true;
    for (uint32_t count = 1; count < config->ranks;) {
        struct pollfd poll_fd = {.fd = config->listen_fd, .events = POLLIN};
        int left_ms = clock_left_ms(config->deadline_us, clock_us());
        if (poll(&poll_fd, 1, left_ms < 1000 ? left_ms : 1000) < 0 || left_ms == 0) {
            return missing(config, come);
        }
        int socket = -1;
        int rc = shm_accept(config->listen_fd, &socket);
        if (rc == SOLO_EAGAIN) {
            continue;
        }
        TRY(rc);
        if (hand_over(config, board, socket, come) == 0) {
            count++;
        }
        close(socket);
    }
    return 0;
}

static int take(const struct board_config *config, struct board *board)
{
    int socket = -1;
    TRY(shm_connect(config->meeting, &socket));
    struct greeting greeting = {.rank = config->rank};
    memcpy(greeting.token, config->token, sizeof greeting.token);
    uint8_t welcome = 0;
    int fd = -1;
    int rc = shm_send_fds(socket, &greeting, sizeof greeting, NULL, 0, config->deadline_us);
    if (rc == 0) {
        rc = shm_receive_fds(socket, &welcome, 1, &fd, 1, config->deadline_us);
    }
    close(socket);
    if (rc < 0) {
        return err_set(rc, "rank %u on this host did not hand over the group's memory",
                       config->global[0]);
    }
    return shm_attach(fd, board_bytes(config->ranks), &board->shm);
}

int board_open(const struct board_config *config, struct board *board)
{
    *board = (struct board){.rank = config->rank,
                            .ranks = config->ranks,
                            .global = config->global,
                            .slot_bytes = BOARD_SLOT_BYTES,
                            .spin_us = host_cores() >= config->ranks ? SPIN_US : 0};
    board->shm.fd = -1;
    int rc = config->listen_fd >= 0 ? make(config, board) : take(config, board);
    if (rc < 0) {
        shm_close(&board->shm);
        *board = (struct board){0};
        return rc;
    }
    shm_drop_fd(&board->shm);
    struct layout at = layout_of(config->ranks);
    uint8_t *base = board->shm.base;
    board->fault = (struct board_fault *)(void *)base;
    board->desks = (struct board_desk *)(void *)(base + at.desks);
    board->desk_stride = at.desk_stride;
    board->lengths = base + at.lengths;
    board->lengths_stride = at.lengths_stride;
    board->tubes = base + at.tubes;
    board->windows = base + at.windows;
    struct board_desk *desk = board_desk(board, board->rank);
    snprintf(desk->host, sizeof desk->host, "%s", config->host);
    rc = pulse_start(&desk->pulse);
    if (rc < 0) {
        shm_close(&board->shm);
        *board = (struct board){0};
    }
    return rc;
}

void board_leave(struct board *board)
{
    if (board->shm.base) {
        pulse_stop(&board_desk(board, board->rank)->pulse);
    }
}

void board_close(struct board *board)
{
    if (board->shm.base) {
        board_leave(board);
        shm_close(&board->shm);
    }
    *board = (struct board){0};
}

void board_break(struct board *board, int rc, const char *text)
{
    struct board_fault *fault = board->fault;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&fault->state, &none, 1)) {
        fault->rc = rc;
        fault->rank = board->global[board->rank];
        snprintf(fault->text, sizeof fault->text, "%s", text);
        atomic_store_explicit(&fault->state, 2, memory_order_release);
    }
}

int board_broken(const struct board *board)
{
    const struct board_fault *fault = board->fault;
    if (atomic_load_explicit(&fault->state, memory_order_acquire) != 2) {
        return 0;
    }
    if (fault->rank == board->global[board->rank]) {
        return err_set(fault->rc, "%s", fault->text);
    }
    return err_set(fault->rc, "rank %u reports: %s", fault->rank, fault->text);
}

int board_alive(const struct board *board, uint32_t rank)
{
    const struct board_desk *desk = board_desk(board, rank);
    enum pulse_state state = pulse_look(&desk->pulse);
    if (state == PULSE_DEAD || state == PULSE_STOPPED) {
        return err_set(SOLO_ECLOSED, "rank %u (%s) %s", board->global[rank], desk->host,
                       state == PULSE_DEAD ? "has died" : "has left the group");
    }
    return 0;
}

bool board_has_died(const struct board *board, uint32_t rank)
{
    return pulse_look(&board_desk(board, rank)->pulse) == PULSE_DEAD;
}
