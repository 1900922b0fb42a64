#include "os/sock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "dial_kit.h"

static int listen_fd, client_fd, server_fd;

static void connect_pair(void)
{
    struct solo_url url = {.host = "127.0.0.1", .port = 0};
    struct addr from;
    enum solo_reach reach = SOLO_REACHED;
    CHECK_EQ(sock_listen(&url, &listen_fd, &url.port), 0);
    CHECK_EQ(connect_to(&url, &client_fd, &reach), 0);
    CHECK_EQ(sock_accept(listen_fd, &server_fd, &from), 0);
}

static void close_pair(void)
{
    close(server_fd);
    close(client_fd);
    close(listen_fd);
}

static bool set_control(int fd, const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

static bool control_is(int fd, const char *name)
{
    char control[16] = "";
    socklen_t size = sizeof control - 1;
    CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &size), 0);
    return strcmp(control, name) == 0;
}

TEST(bbr_gives_way_on_a_path_shorter_than_a_millisecond)
{
    connect_pair();
    int fds[] = {client_fd, server_fd};
    for (int i = 0; i < 2; i++) {
        bool has_bbr = set_control(fds[i], "bbr");
        uint32_t rtt_us = sock_rtt_us(fds[i]);
        bool is_short = rtt_us > 0 && rtt_us < 1000; /* unless the machine is very busy */
        sock_suit_path(fds[i]);
        CHECK_EQ(control_is(fds[i], "bbr"), has_bbr && !is_short);
    }
    close_pair();
}

/* Whether it is `then` after the choice, if the host has both. */
static void check_choice(const char *wanted, const char *before, const char *then)
{
    connect_pair();
    if (set_control(client_fd, then) && set_control(client_fd, before)) {
        CHECK_EQ(setenv("SOLO_CONGESTION", wanted, 1), 0);
        sock_suit_path(client_fd);
        CHECK_EQ(unsetenv("SOLO_CONGESTION"), 0);
        CHECK(control_is(client_fd, then));
    }
    close_pair();
}

TEST(the_environment_names_the_congestion_control_or_leaves_the_hosts)
{
    check_choice("reno", "bbr", "reno");
    check_choice("bbr", "reno", "bbr");
    check_choice("host", "bbr", "bbr");
}

TEST(a_congestion_control_that_the_host_has_not_is_ignored)
{
    check_choice("no-such-control", "reno", "reno");
}

TEST(any_other_congestion_control_of_the_host_stays)
{
    connect_pair();
    CHECK(set_control(client_fd, "reno"));
    sock_suit_path(client_fd);
    CHECK(control_is(client_fd, "reno"));
    close_pair();
}
