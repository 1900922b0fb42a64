#include "machine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text.h"

enum { RESOLVE_MS = 900 }; /* a name server that is silent is told within a second, and again */

bool machine_url_parse(const char *text, struct solo_url *out, const char **why)
{
    if (solo_url_parse(text, out) < 0) {
        *why = text_copy(solo_error_text());
        return false;
    }
    return true;
}

char *machine_url_text(const char *host, unsigned port)
{
    return text_format(strchr(host, ':') ? "tcp://[%s]:%u" : "tcp://%s:%u", host, port);
}

bool machine_resolve(const struct solo_url *url, struct address *out, const char **why)
{
    char numeric[SOLO_NAME_MAX], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    if (solo_resolve(url, RESOLVE_MS, numeric, sizeof numeric) < 0) {
        *why = text_copy(solo_error_text());
        return false;
    }
    snprintf(port, sizeof port, "%u", url->port);
    int rc = getaddrinfo(numeric, port, &hints, &found);
    if (rc != 0) {
        *why = gai_strerror(rc);
        return false;
    }
    memcpy(&out->bytes, found->ai_addr, found->ai_addrlen);
    out->size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

char *machine_numeric(const struct address *address)
{
    char host[SOLO_NAME_MAX] = "?";
    getnameinfo((const struct sockaddr *)&address->bytes, address->size, host, sizeof host, NULL, 0,
                NI_NUMERICHOST);
    return text_copy(host);
}

bool machine_is_loopback(const struct address *address)
{
    return solo_is_loopback(machine_numeric(address));
}

static void set_port(struct address *address, uint16_t port)
{
    if (address->bytes.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)&address->bytes)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)&address->bytes)->sin_port = htons(port);
    }
}

bool machine_is_local(const struct address *address)
{
    struct address any_port = *address;
    set_port(&any_port, 0);
    int fd = socket(address->bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    bool local = bind(fd, (struct sockaddr *)&any_port.bytes, any_port.size) == 0;
    close(fd);
    return local;
}

char *machine_route_source(const struct address *to)
{
    struct solo_url url = {.port = 1};
    char source[SOLO_NAME_MAX];
    snprintf(url.host, sizeof url.host, "%s", machine_numeric(to));
    return solo_route_address(&url, source, sizeof source) < 0 ? NULL : text_copy(source);
}

char *machine_interface(const char *numeric)
{
    struct ifaddrs *all, *at;
    char *name = NULL;
    if (getifaddrs(&all) < 0) {
        return NULL;
    }
    for (at = all; at && !name; at = at->ifa_next) {
        int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
        if (family != AF_INET && family != AF_INET6) {
            continue;
        }
        struct address address = {.size = family == AF_INET ? sizeof(struct sockaddr_in)
                                                            : sizeof(struct sockaddr_in6)};
        memcpy(&address.bytes, at->ifa_addr, address.size);
        bool any_loopback = text_starts(numeric, "127.") && machine_is_loopback(&address);
        if (any_loopback || strcmp(machine_numeric(&address), numeric) == 0) {
            name = text_copy(at->ifa_name);
        }
    }
    freeifaddrs(all);
    return name;
}

int machine_listen(const struct address *address, bool keep)
{
    int fd = socket(address->bytes.ss_family,
                    SOCK_STREAM | SOCK_NONBLOCK | (keep ? 0 : SOCK_CLOEXEC), 0);
    if (fd < 0) {
        return -errno;
    }
    int on = 1; /* a master that was just killed left connections in TIME_WAIT */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)&address->bytes, address->size) < 0 ||
        listen(fd, 128) < 0) {
        int why = errno;
        close(fd);
        return -why;
    }
    return fd;
}

void machine_close(int fd)
{
    close(fd);
}

char *machine_port_holder(uint16_t port)
{
    char text[SOLO_TEXT_MAX];
    solo_port_holder(port, text, sizeof text);
    return *text ? text_copy(text) : NULL;
}

uint16_t machine_free_port(void)
{
    struct address address = {.size = sizeof(struct sockaddr_in)};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address.bytes;
    v4->sin_family = AF_INET;
    int fd = machine_listen(&address, false);
    if (fd < 0) {
        return 0;
    }
    getsockname(fd, (struct sockaddr *)&address.bytes, &address.size);
    close(fd);
    return ntohs(v4->sin_port);
}

const char *machine_name(void)
{
    static char name[SOLO_NAME_MAX];
    if (!*name && gethostname(name, sizeof name - 1) < 0) {
        memcpy(name, "localhost", sizeof "localhost");
    }
    return name;
}
