#include "comm/card.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "os/host.h"

/* "solo-card-1 key=value ...": values hold neither spaces nor '='. */
#define CARD_MAGIC "solo-card-1"

int card_host_id(char out[80])
{
    uint8_t boot[HOST_BOOT_ID_BYTES];
    int rc = host_boot_id(boot);
    if (rc < 0 && rc != SOLO_ENOTSUP) {
        return rc;
    }
    char hex[2 * HOST_BOOT_ID_BYTES + 1];
    for (size_t i = 0; i < sizeof boot; i++) {
        snprintf(hex + 2 * i, 3, "%02x", boot[i]);
    }
    /* Abstract sockets belong to a network namespace: two of them are two hosts to us. */
    struct stat space = {0};
    stat("/proc/self/ns/net", &space);
    snprintf(out, 80, "%s.%llu", hex, (unsigned long long)space.st_ino);
    return 0;
}

int card_write(const struct card *card, char out[SOLO_CARD_MAX])
{
    int size = snprintf(out, SOLO_CARD_MAX, CARD_MAGIC " id=%s host=%s meet=%s secret=%s tcp=%s",
                        card->host_id, card->host, card->meeting, card->secret, card->address);
    if (size < 0 || (size_t)size >= SOLO_CARD_MAX) {
        return err_set(SOLO_ELIMIT, "this rank's address does not fit in %u bytes", SOLO_CARD_MAX);
    }
    return 0;
}

static bool field(const char *text, const char *key, char *out, size_t size)
{
    char pattern[16];
    snprintf(pattern, sizeof pattern, " %s=", key);
    const char *at = strstr(text, pattern);
    if (!at) {
        return false;
    }
    at += strlen(pattern);
    size_t length = strcspn(at, " ");
    if (length >= size) {
        return false;
    }
    memcpy(out, at, length);
    out[length] = 0;
    return true;
}

int card_read(const char *text, struct card *out)
{
    size_t magic = strlen(CARD_MAGIC);
    if (strncmp(text, CARD_MAGIC " ", magic + 1) != 0 ||
        !field(text, "id", out->host_id, sizeof out->host_id) ||
        !field(text, "host", out->host, sizeof out->host) ||
        !field(text, "meet", out->meeting, sizeof out->meeting) ||
        !field(text, "secret", out->secret, sizeof out->secret) ||
        !field(text, "tcp", out->address, sizeof out->address)) {
        return err_set(SOLO_EVERSION, "it is not the card of a rank of this version of solo");
    }
    return 0;
}
