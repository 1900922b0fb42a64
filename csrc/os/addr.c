#include "os/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

/* ---- URLs ------------------------------------------------------------------------------- */

static int bad_url(const char *text, const char *why)
{
    return err_set(SOLO_EINVAL,
                   "\"%.200s\" is no address: %s; write tcp://HOST:PORT, such as "
                   "tcp://10.0.0.1:%u or tcp://[fd00::1]:%u",
                   text, why, SOLO_PORT_DEFAULT, SOLO_PORT_DEFAULT);
}

static int parse_port(const char *text, const char *digits, uint16_t *out)
{
    uint32_t port = 0;
    for (const char *at = digits; *at; at++) {
        if (*at < '0' || *at > '9' || port > UINT16_MAX) {
            return bad_url(text, "a port is a number from 1 to 65535");
        }
        port = port * 10 + (uint32_t)(*at - '0');
    }
    if (!*digits || port == 0 || port > UINT16_MAX) {
        return bad_url(text, "a port is a number from 1 to 65535");
    }
    *out = (uint16_t)port;
    return 0;
}

static bool is_name_byte(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

static bool is_v6_byte(unsigned char c)
{
    return is_name_byte(c) || c == ':' || c == '%'; /* % before a scope: fe80::1%eth0 */
}

static int copy_host(const char *text, const char *host, size_t length, bool v6,
                     struct solo_url *url)
{
    if (length == 0) {
        return bad_url(text, "the host is missing");
    }
    if (length >= sizeof url->host) {
        return bad_url(text, "the host is longer than 127 bytes");
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)host[i];
        if (v6 ? !is_v6_byte(c) : !is_name_byte(c)) {
            return bad_url(text, v6 ? "inside [ ] stands an IPv6 address"
                                    : "a host has letters, digits, '.', '-' and '_' only");
        }
    }
    memcpy(url->host, host, length);
    url->host[length] = 0;
    struct addr number = {0};
    if (v6 && addr_numeric(url, &number) < 0) {
        return bad_url(text, "inside [ ] stands an IPv6 address");
    }
    return 0;
}

/* "[v6]" or "[v6]:port". */
static int parse_bracketed(const char *text, const char *at, struct solo_url *url)
{
    const char *close = strchr(at, ']');
    if (!close) {
        return bad_url(text, "the ] is missing");
    }
    if (close[1] == ':') {
        TRY(parse_port(text, close + 2, &url->port));
    } else if (close[1]) {
        return bad_url(text, "after ] comes :PORT or nothing");
    }
    return copy_host(text, at + 1, (size_t)(close - at - 1), true, url);
}

int solo_url_parse(const char *text, struct solo_url *out)
{
    struct solo_url url = {.port = SOLO_PORT_DEFAULT};
    if (!text || !*text) {
        return bad_url("", "it is empty");
    }
    const char *at = text, *scheme = strstr(text, "://");
    if (scheme) {
        if (scheme - text != 3 || strncmp(text, "tcp", 3) != 0) {
            return bad_url(text, "only tcp:// is spoken here");
        }
        at = scheme + 3;
    }
    if (*at == '[') {
        TRY(parse_bracketed(text, at, &url));
        *out = url;
        return 0;
    }
    size_t length = strcspn(at, ":");
    if (at[length] == ':' && strchr(at + length + 1, ':')) {
        return bad_url(text, "an IPv6 address stands in [ ]");
    }
    if (at[length] == ':') {
        TRY(parse_port(text, at + length + 1, &url.port));
    }
    TRY(copy_host(text, at, length, false, &url));
    *out = url;
    return 0;
}

/* ---- numbers and their texts ------------------------------------------------------------ */

/* An address of the host without scope, and whether it is v4 (also when mapped into v6). */
static bool plain_v4(const struct addr *addr, struct in_addr *out)
{
    if (addr->bytes.ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, &addr->bytes, sizeof v4);
        *out = v4.sin_addr;
        return true;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, &addr->bytes, sizeof v6);
    if (addr->bytes.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        memcpy(out, v6.sin6_addr.s6_addr + 12, sizeof *out);
        return true;
    }
    return false;
}

uint16_t addr_port(const struct addr *addr)
{
    struct sockaddr_in6 v6; /* the port is at the same place in both families */
    memcpy(&v6, &addr->bytes, sizeof v6);
    bool inet = addr->bytes.ss_family == AF_INET || addr->bytes.ss_family == AF_INET6;
    return inet ? ntohs(v6.sin6_port) : 0;
}

void addr_host_text(const struct addr *addr, char out[ADDR_TEXT_MAX])
{
    struct in_addr v4;
    if (plain_v4(addr, &v4)) {
        inet_ntop(AF_INET, &v4, out, ADDR_TEXT_MAX);
    } else if (addr->bytes.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        char scope[IF_NAMESIZE];
        memcpy(&v6, &addr->bytes, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, out, ADDR_TEXT_MAX);
        if (v6.sin6_scope_id && if_indextoname(v6.sin6_scope_id, scope)) {
            size_t used = strlen(out);
            snprintf(out + used, ADDR_TEXT_MAX - used, "%%%s", scope);
        }
    } else {
        snprintf(out, ADDR_TEXT_MAX, "%s",
                 addr->bytes.ss_family == AF_UNIX ? "this host" : "unknown");
    }
}

void addr_text(const struct addr *addr, char out[ADDR_TEXT_MAX])
{
    char host[ADDR_TEXT_MAX];
    struct in_addr v4;
    addr_host_text(addr, host);
    if (plain_v4(addr, &v4)) {
        snprintf(out, ADDR_TEXT_MAX, "%.45s:%u", host, addr_port(addr));
    } else if (addr->bytes.ss_family == AF_INET6) {
        snprintf(out, ADDR_TEXT_MAX, "[%.55s]:%u", host, addr_port(addr));
    } else {
        snprintf(out, ADDR_TEXT_MAX, "%s", host);
    }
}

bool addr_is_loopback(const struct addr *addr)
{
    struct in_addr v4;
    if (plain_v4(addr, &v4)) {
        return ntohl(v4.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, &addr->bytes, sizeof v6);
    return addr->bytes.ss_family == AF_UNIX ||
           (addr->bytes.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr));
}

static void addr_of(const struct addrinfo *info, struct addr *out)
{
    *out = (struct addr){.size = info->ai_addrlen};
    memcpy(&out->bytes, info->ai_addr, info->ai_addrlen);
}

int addr_numeric(const struct solo_url *url, struct addr *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", url->port);
    if (getaddrinfo(url->host, port, &hints, &found) != 0) {
        return err_set(SOLO_EINVAL, "%s is a name, not an address", url->host);
    }
    addr_of(found, out);
    freeaddrinfo(found);
    return 0;
}

/* ---- the launcher's questions ----------------------------------------------------------- */

int solo_is_loopback(const char *numeric_address)
{
    struct solo_url url = {.port = 1};
    struct addr addr = {0};
    snprintf(url.host, sizeof url.host, "%s", numeric_address);
    return addr_numeric(&url, &addr) == 0 && addr_is_loopback(&addr);
}

#define ROUTE_LOOKUP_US 5000000u

/* The source address of the route. Connecting a UDP socket sends nothing, but has the kernel
 * choose it. Leaves errno on failure. */
static bool route_source(const struct addr *to, struct addr *out)
{
    int fd = socket(to->bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *out = (struct addr){.size = sizeof out->bytes};
    bool found = fd >= 0 && connect(fd, (const struct sockaddr *)&to->bytes, to->size) == 0 &&
                 getsockname(fd, (struct sockaddr *)&out->bytes, &out->size) == 0;
    int number = errno;
    if (fd >= 0) {
        close(fd);
    }
    errno = number;
    return found;
}

int solo_route_address(const struct solo_url *to, char *out, size_t size)
{
    struct addr_list list = {0};
    TRY(addr_resolve(to, clock_us() + ROUTE_LOOKUP_US, &list));
    for (uint32_t i = 0; i < list.count; i++) {
        struct addr mine = {0};
        if (route_source(&list.at[i], &mine)) {
            char text[ADDR_TEXT_MAX];
            addr_host_text(&mine, text);
            snprintf(out, size, "%s", text);
            return 0;
        }
    }
    return err_errno("no route to %s", to->host);
}

/* The route to an address of ours starts at that very address. */
bool addr_is_this_host(const struct solo_url *url)
{
    struct addr addr = {0}, source = {0};
    char theirs[ADDR_TEXT_MAX], ours[ADDR_TEXT_MAX];
    if (strcmp(url->host, "localhost") == 0) {
        return true;
    }
    if (addr_numeric(url, &addr) < 0 || !route_source(&addr, &source)) {
        return false;
    }
    addr_host_text(&addr, theirs);
    addr_host_text(&source, ours);
    return addr_is_loopback(&addr) || strcmp(theirs, ours) == 0;
}
