/* Strangers at the door: none of them disturbs those who may come in. */
#include <fcntl.h>
#include <sys/resource.h>

#include "conn_world.h"

TEST(a_wrong_token_is_refused_on_both_sides)
{
    open_door("127.0.0.1", "secret", 0);
    dial("Secret");
    UNTIL(client.lost && refused);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    CHECK_EQ(conn_reach(client.conn), SOLO_BAD_TOKEN);
    CHECK_EQ(server.opened, 0);
    CHECK_EQ(client.opened, 0);
    CHECK_EQ(door_pending(door), 0);
    close_door();
}

TEST(a_missing_token_is_refused_on_both_sides)
{
    open_door("127.0.0.1", "secret", 0);
    dial(NULL);
    UNTIL(client.lost && refused);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    CHECK_EQ(refused_rc, SOLO_EAUTH);
    close_door();
}

TEST(another_job_is_told_apart)
{
    open_door("127.0.0.1", "secret", 0);
    struct conn_config config = dialer("secret");
    config.job_id = "another";
    CHECK_EQ(conn_dial(&config, &here, &client.conn), 0);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_EREFUSED);
    CHECK_EQ(conn_reach(client.conn), SOLO_OTHER_JOB);
    close_door();
}

TEST(without_a_token_only_loopback_is_dialed)
{
    open_door("127.0.0.1", NULL, 0);
    snprintf(here.host, sizeof here.host, "192.0.2.1");
    dial(NULL);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    CHECK_HAS(client.text, "--token_file");
    close_door();
}

TEST(without_a_token_only_loopback_is_let_in)
{
    struct solo_url other = {.host = "192.0.2.1", .port = 1};
    struct addr from;
    int pair[2];
    open_door("127.0.0.1", NULL, 0);
    CHECK_EQ(addr_numeric(&other, &from), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    struct conn_config config = dialer(NULL);
    CHECK_EQ(conn_accept(&config, pair[0], &from, &client.conn), SOLO_EAUTH);
    CHECK_HAS(solo_error_text(), "192.0.2.1");
    CHECK_EQ(write(pair[1], "x", 1), -1); /* it is closed */
    close(pair[1]);
    connect_both(NULL);
    close_door();
}

TEST(garbage_zeros_and_port_scans_disturb_nobody)
{
    static const char zeros[64];
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    open_door("127.0.0.1", "secret", 0);
    int a = knock(), b = knock(), c = knock(), d = knock();
    CHECK_EQ(write(a, zeros, sizeof zeros), sizeof zeros);
    CHECK_EQ(write(b, http, sizeof http), sizeof http);
    close(c);
    CHECK_EQ(write(d, "solo-hi\n", 8), 8); /* right, then nothing: dies with its deadline */
    sock_reset(d);
    UNTIL(refused == 4);
    CHECK_EQ(door_pending(door), 0);
    connect_both("secret");
    close(a);
    close(b);
    close_door();
}

TEST(a_silent_connection_ends_at_its_deadline)
{
    open_door("127.0.0.1", "secret", 30000);
    int fd = knock();
    UNTIL(refused == 1);
    CHECK_EQ(refused_rc, SOLO_ETIMEDOUT);
    CHECK_EQ(door_pending(door), 0);
    close(fd);
    close_door();
}

TEST(a_connection_that_proves_the_token_and_then_is_silent_ends_too)
{
    open_door("127.0.0.1", "secret", 30000);
    dial("secret");
    UNTIL(client.opened && client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    CHECK_EQ(refused_rc, SOLO_ETIMEDOUT);
    close_door();
}

TEST(silent_connections_are_bounded_and_keep_no_honest_one_out)
{
    int fds[DOOR_PENDING_MAX + 20];
    open_door("127.0.0.1", "secret", 0);
    for (uint32_t i = 0; i < DOOR_PENDING_MAX + 20; i++) {
        fds[i] = knock();
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    UNTIL(refused == 20);
    CHECK_EQ(refused_rc, SOLO_ELIMIT);
    CHECK_EQ(door_pending(door), DOOR_PENDING_MAX);
    connect_both("secret");
    for (uint32_t i = 0; i < DOOR_PENDING_MAX + 20; i++) {
        close(fds[i]);
    }
    close_door();
}

TEST(a_first_frame_that_is_not_wanted_closes_the_connection)
{
    open_door("127.0.0.1", "secret", 0);
    dial("secret");
    UNTIL(client.opened);
    CHECK_EQ(conn_send_copy(client.conn, &(struct frame){.type = FRAME_LEAVE}, "", 0), 0);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    CHECK_EQ(refused, 1);
    CHECK_EQ(refused_rc, SOLO_EREFUSED);
    CHECK_STR(refused_text, "nobody leaves who never came");
    close_door();
}

static void silent_listener(enum solo_reach expected, int rc, const char *says)
{
    struct conn_config config = dialer("secret");
    struct addr from;
    int listener = -1, fd = -1;
    here = (struct solo_url){.host = "127.0.0.1"};
    CHECK_EQ(sock_listen(&here, &listener, &here.port), 0);
    config.hello_us = 40000;
    client = (struct side){0};
    CHECK_EQ(conn_dial(&config, &here, &client.conn), 0);
    if (says) {
        UNTIL(sock_accept(listener, &fd, &from) == 0);
        CHECK_EQ(write(fd, says, strlen(says)), (ssize_t)strlen(says));
    }
    UNTIL(client.lost);
    CHECK_EQ(client.rc, rc);
    CHECK_EQ(conn_reach(client.conn), expected);
    conn_free(client.conn);
    client.conn = NULL;
    close(listener);
    close(fd);
}

TEST(a_stopped_peer_and_another_service_are_told_apart)
{
    open_door("127.0.0.1", "secret", 0);
    silent_listener(SOLO_NO_ANSWER, SOLO_ETIMEDOUT, NULL);
    silent_listener(SOLO_NOT_SOLO, SOLO_EPEER, "SSH-2.0-OpenSSH_9.2\r\n");
    close_door();
}

TEST(refused_and_unknown_hosts_are_told_apart)
{
    open_door("127.0.0.1", "secret", 0);
    struct solo_url gone = {.host = "127.0.0.1"};
    struct conn_config config = dialer("secret");
    int fd = -1;
    CHECK_EQ(sock_listen(&gone, &fd, &gone.port), 0);
    close(fd);
    CHECK_EQ(conn_dial(&config, &gone, &client.conn), 0);
    UNTIL(client.lost == 1);
    CHECK_EQ(client.rc, SOLO_EREFUSED);
    CHECK_EQ(conn_reach(client.conn), SOLO_CONN_REFUSED);
    conn_free(client.conn);
    snprintf(gone.host, sizeof gone.host, "no-such-host.invalid");
    CHECK_EQ(conn_dial(&config, &gone, &client.conn), 0);
    UNTIL(client.lost == 2);
    CHECK_EQ(conn_reach(client.conn), SOLO_NO_NAME);
    close_door();
}

/* The one of our descriptors that listens at the door's port. */
static int listener(void)
{
    for (int fd = 3; fd < 256; fd++) {
        int listens = 0;
        socklen_t size = sizeof listens;
        struct addr bound;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens &&
            sock_local(fd, &bound) == 0 && addr_port(&bound) == here.port) {
            return fd;
        }
    }
    return -1;
}

TEST(a_door_without_descriptors_rests_until_it_can_be_watched_again)
{
    struct rlimit before, full;
    open_door("127.0.0.1", "secret", 0);
    int port = listener(), stranger = knock(), next = dup(stranger);
    CHECK(port > 0 && next > 0);
    close(next);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    full = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
    UNTIL(refused == 1);
    CHECK_EQ(refused_rc, SOLO_ESYS);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    int kept = dup(port), other = open("/dev/null", O_RDONLY); /* which epoll does not take */
    CHECK_EQ(dup2(other, port), port);
    UNTIL(refused == 3);
    CHECK_HAS(refused_text, "cannot watch");
    CHECK_EQ(dup2(kept, port), port);
    close(kept);
    close(other);
    connect_both("secret");
    close(stranger);
    close_door();
}
