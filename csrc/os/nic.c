#include "os/nic.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define TEXT_MAX INET6_ADDRSTRLEN

static bool text_of(const struct sockaddr *address, char out[TEXT_MAX])
{
    if (address && address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return inet_ntop(AF_INET, &v4->sin_addr, out, TEXT_MAX) != NULL;
    }
    if (address && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
        return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) &&
               inet_ntop(AF_INET6, &v6->sin6_addr, out, TEXT_MAX) != NULL;
    }
    return false;
}

/* One word of the choice against one address. */
static bool fits(const char *word, size_t length, const struct ifaddrs *nic, const char *text)
{
    bool same_address = strlen(text) == length && strncmp(text, word, length) == 0;
    return length > 0 && (same_address || strncmp(nic->ifa_name, word, length) == 0);
}

static bool excluded(const char *choice, const struct ifaddrs *nic, const char *text)
{
    for (const char *at = choice; *at; at += strcspn(at, ","), at += *at == ',') {
        if (*at == '^' && fits(at + 1, strcspn(at + 1, ","), nic, text)) {
            return true;
        }
    }
    return false;
}

static bool find(const struct ifaddrs *nics, const char *word, const char *choice,
                 char out[TEXT_MAX])
{
    size_t length = strcspn(word, ",");
    bool any = *word == '^'; /* exclusions alone: whatever else there is */
    for (const struct ifaddrs *nic = nics; nic; nic = nic->ifa_next) {
        char text[TEXT_MAX];
        if (!(nic->ifa_flags & IFF_UP) || !text_of(nic->ifa_addr, text) ||
            excluded(choice, nic, text)) {
            continue;
        }
        if (any ? !(nic->ifa_flags & IFF_LOOPBACK) : fits(word, length, nic, text)) {
            memcpy(out, text, TEXT_MAX);
            return true;
        }
    }
    return false;
}

static int none_fits(const struct ifaddrs *nics, const char *choice)
{
    char list[256] = "", text[TEXT_MAX];
    size_t used = 0;
    for (const struct ifaddrs *nic = nics; nic && used + 80 < sizeof list; nic = nic->ifa_next) {
        if (text_of(nic->ifa_addr, text)) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s (%s)", used ? ", " : "",
                                     nic->ifa_name, text);
        }
    }
    return err_set(SOLO_ENOENT, "no interface of this host fits \"%s\": it has %s", choice, list);
}

int nic_address(const char *choice, char *out, size_t size)
{
    struct ifaddrs *nics = NULL;
    char text[TEXT_MAX];
    if (getifaddrs(&nics) < 0) {
        return err_errno("cannot list this host's interfaces");
    }
    bool found = false;
    for (const char *at = choice; *at && !found; at += strcspn(at, ","), at += *at == ',') {
        found = find(nics, at, choice, text);
    }
    int rc = found ? 0 : none_fits(nics, choice);
    if (found) {
        snprintf(out, size, "%s", text);
    }
    freeifaddrs(nics);
    return rc;
}
