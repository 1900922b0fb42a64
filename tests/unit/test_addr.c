#include <netinet/tcp.h>
#include <unistd.h>

#include "check.h"
#include "dial_kit.h"
#include "ipv6.h"
#include "os/addr.h"
#include "os/host.h"
#include "os/sock.h"

static void is(const char *text, const char *host, unsigned port)
{
    struct solo_url url;
    CHECK_EQ(solo_url_parse(text, &url), 0);
    CHECK_STR(url.host, host);
    CHECK_EQ(url.port, port);
}

static void is_not(const char *text, const char *reason)
{
    struct solo_url url = {.host = "untouched", .port = 7};
    CHECK_EQ(solo_url_parse(text, &url), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), reason);
    CHECK_HAS(solo_error_text(), "tcp://10.0.0.1:29400"); /* how to write it */
    CHECK_STR(url.host, "untouched");
    CHECK_EQ(url.port, 7);
}

TEST(an_address_is_a_url_or_a_host_with_or_without_port)
{
    is("tcp://10.0.0.4:29500", "10.0.0.4", 29500);
    is("tcp://node-1.cluster_a.local", "node-1.cluster_a.local", SOLO_PORT_DEFAULT);
    is("localhost:1", "localhost", 1);
    is("localhost", "localhost", SOLO_PORT_DEFAULT);
    is("[::1]:65535", "::1", 65535);
    is("tcp://[fd00::1]", "fd00::1", SOLO_PORT_DEFAULT);
}

TEST(what_is_no_address_is_refused_with_the_reason)
{
    is_not("", "empty");
    is_not(NULL, "empty");
    is_not("tcp://", "host is missing");
    is_not(":29400", "host is missing");
    is_not("http://10.0.0.4:80", "only tcp://");
    is_not("tcps://10.0.0.4", "only tcp://");
    is_not("10.0.0.4:0", "port");
    is_not("10.0.0.4:", "port");
    is_not("10.0.0.4:65536", "port");
    is_not("10.0.0.4:99999999999999999999", "port");
    is_not("10.0.0.4:29400/path", "port");
    is_not("10.0.0.4/path", "letters");
    is_not("a b", "letters");
    is_not("fd00::1", "[ ]");
    is_not("[fd00::1", "]");
    is_not("[fd00::1]29400", "after ]");
    is_not("[fd00::zz]:1", "IPv6");
    is_not("[localhost]:1", "IPv6");
    char long_host[300];
    memset(long_host, 'a', sizeof long_host - 1);
    long_host[sizeof long_host - 1] = 0;
    is_not(long_host, "longer");
}

TEST(loopback_is_told_from_other_addresses)
{
    CHECK(solo_is_loopback("127.0.0.1"));
    CHECK(solo_is_loopback("127.9.9.9"));
    CHECK(solo_is_loopback("::1"));
    CHECK(solo_is_loopback("::ffff:127.0.0.1"));
    CHECK(!solo_is_loopback("10.0.0.1"));
    CHECK(!solo_is_loopback("128.0.0.1"));
    CHECK(!solo_is_loopback("fe80::1"));
    CHECK(!solo_is_loopback("localhost"));
    CHECK(!solo_is_loopback(""));
}

TEST(addresses_are_written_as_people_write_them)
{
    struct solo_url url = {.host = "::ffff:10.0.0.4", .port = 29400};
    struct addr addr;
    char text[ADDR_TEXT_MAX];
    CHECK_EQ(addr_numeric(&url, &addr), 0);
    addr_text(&addr, text);
    CHECK_STR(text, "10.0.0.4:29400");
    snprintf(url.host, sizeof url.host, "fd00::1");
    CHECK_EQ(addr_numeric(&url, &addr), 0);
    addr_text(&addr, text);
    CHECK_STR(text, "[fd00::1]:29400");
    addr_host_text(&addr, text);
    CHECK_STR(text, "fd00::1");
}

TEST(the_route_to_loopback_starts_at_loopback)
{
    struct solo_url url = {.host = "127.0.0.1", .port = 29400};
    char text[SOLO_NAME_MAX];
    CHECK_EQ(solo_route_address(&url, text, sizeof text), 0);
    CHECK_STR(text, "127.0.0.1");
    CHECK(addr_is_this_host(&url));
    snprintf(url.host, sizeof url.host, "192.0.2.1"); /* RFC 5737: nobody's */
    CHECK(!addr_is_this_host(&url));
}

TEST(a_name_that_nobody_has_is_told_apart)
{
    struct solo_url url = {.host = "no-such-host.invalid", .port = 29400};
    struct addr_list list;
    int rc = addr_resolve(&url, clock_us() + 20000000, &list);
    CHECK(rc == SOLO_ENOENT || rc == SOLO_ETIMEDOUT);
    CHECK_HAS(solo_error_text(), "no-such-host.invalid");
}

struct answer {
    int calls, rc;
    uint32_t count;
};

static void on_found(void *context, int rc, const struct addr_list *found)
{
    struct answer *answer = context;
    answer->calls++;
    answer->rc = rc;
    answer->count = found->count;
}

TEST(a_look_up_on_the_loop_answers_once_and_never_from_inside_the_call)
{
    struct loop *loop;
    struct addr_query *query;
    static const char *const hosts[] = {"localhost", "127.0.0.1"};
    CHECK_EQ(loop_new(&loop), 0);
    for (int i = 0; i < 2; i++) {
        struct answer answer = {0};
        struct solo_url url = {.port = 1};
        snprintf(url.host, sizeof url.host, "%s", hosts[i]);
        CHECK_EQ(addr_query_start(loop, &url, clock_us() + 10000000, on_found, &answer, &query), 0);
        CHECK_EQ(answer.calls, 0);
        while (answer.calls == 0) {
            CHECK_EQ(loop_turn(loop, CLOCK_NEVER), 0);
        }
        CHECK_EQ(answer.rc, 0);
        CHECK(answer.count >= 1);
    }
    struct answer never = {0};
    struct solo_url url = {.host = "localhost", .port = 1};
    CHECK_EQ(addr_query_start(loop, &url, clock_us() + 10000000, on_found, &never, &query), 0);
    addr_query_cancel(query);
    CHECK_EQ(loop_turn(loop, clock_us() + 50000), 0);
    CHECK_EQ(never.calls, 0);
    loop_free(loop);
}

TEST(a_port_in_use_names_its_holder_and_a_free_port)
{
    struct solo_url url = {.host = "*"};
    int first = -1, second = -1;
    uint16_t port = 0;
    char mine[32];
    CHECK_EQ(sock_listen(&url, &first, &port), 0);
    CHECK(port != 0);
    url.port = port;
    CHECK_EQ(sock_listen(&url, &second, &port), SOLO_EINUSE);
    snprintf(mine, sizeof mine, "pid %d (", (int)getpid());
    CHECK_HAS(solo_error_text(), mine);
    CHECK_HAS(solo_error_text(), "test_addr"); /* of its command line */
    CHECK_HAS(solo_error_text(), "is free");
    close(first);
    CHECK_EQ(sock_listen(&url, &second, &port), 0);
    close(second);
}

TEST(an_address_of_another_host_cannot_be_listened_on)
{
    struct solo_url url = {.host = "192.0.2.1", .port = 0};
    int fd = -1;
    uint16_t port = 0;
    CHECK_EQ(sock_listen(&url, &fd, &port), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "not an address of this host");
}

TEST(a_port_where_nothing_listens_is_told_as_refused)
{
    struct solo_url url = {.host = "127.0.0.1"};
    int fd = -1;
    enum solo_reach reach = SOLO_REACHED;
    CHECK_EQ(sock_listen(&url, &fd, &url.port), 0);
    close(fd);
    CHECK_EQ(connect_to(&url, &fd, &reach), SOLO_EREFUSED);
    CHECK_EQ(reach, SOLO_CONN_REFUSED);
    CHECK_HAS(solo_error_text(), "nothing listens");
}

TEST(one_listener_takes_ipv4_and_ipv6)
{
    struct solo_url any = {.host = "*"};
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    int listener = -1;
    CHECK_EQ(sock_listen(&any, &listener, &any.port), 0);
    for (int i = 0; i < (has_ipv6() ? 2 : 1); i++) {
        struct solo_url url = {.port = any.port};
        struct addr from;
        enum solo_reach reach = SOLO_REACHED;
        int fd = -1, accepted = -1;
        snprintf(url.host, sizeof url.host, "%s", hosts[i]);
        CHECK_EQ(connect_to(&url, &fd, &reach), 0);
        CHECK_EQ(reach, SOLO_REACHED);
        CHECK_EQ(sock_accept(listener, &accepted, &from), 0);
        CHECK(addr_is_loopback(&from));
        char text[ADDR_TEXT_MAX];
        addr_host_text(&from, text);
        CHECK_STR(text, hosts[i]);
        close(fd);
        close(accepted);
    }
    close(listener);
}

TEST(the_host_tells_who_and_how_large_it_is)
{
    char name[SOLO_NAME_MAX];
    uint8_t boot[HOST_BOOT_ID_BYTES], again[HOST_BOOT_ID_BYTES], random[2][32];
    host_name(name, sizeof name);
    CHECK(name[0]);
    if (host_boot_id(boot) == 0) {
        CHECK_EQ(host_boot_id(again), 0);
        CHECK(memcmp(boot, again, sizeof boot) == 0);
    }
    CHECK(host_cores() >= 1);
    CHECK_EQ(host_pid(), getpid());
    CHECK_EQ(host_random(random[0], 32), 0);
    CHECK_EQ(host_random(random[1], 32), 0);
    CHECK(memcmp(random[0], random[1], 32) != 0);
}

TEST(a_connection_is_watched_for_a_vanished_host_and_its_buffers_are_left_to_the_kernel)
{
    struct solo_url any = {.host = "127.0.0.1"};
    enum solo_reach reach = SOLO_REACHED;
    int listener = -1, fd = -1, value = 0;
    socklen_t size = sizeof value;
    CHECK_EQ(sock_listen(&any, &listener, &any.port), 0);
    CHECK_EQ(connect_to(&any, &fd, &reach), 0);
    CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size), 0);
    CHECK_EQ(value, SOCK_USER_TIMEOUT_MS);
    CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
    CHECK(value);
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &size), 0);
    CHECK(value);
    CHECK(sock_send_bytes_max() > 0);
    close(fd);
    close(listener);
}
