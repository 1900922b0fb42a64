/* Who holds a port: the socket's inode from /proc/net/tcp, then the process whose descriptors
 * link to that inode. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "os/sock.h"

enum { TCP_STATE_LISTEN = 0x0a, HOLDER_WORDS_MAX = 160 };

/* Field `number` of a line, counted from 0; "" if there are fewer. */
static const char *field(const char *line, int number)
{
    line += strspn(line, " ");
    for (int i = 0; i < number; i++) {
        line += strcspn(line, " ");
        line += strspn(line, " ");
    }
    return line;
}

/* sl local:port remote:port state tx:rx tr:when retransmits uid timeout inode */
enum { FIELD_LOCAL = 1, FIELD_STATE = 3, FIELD_INODE = 9 };

static unsigned long listen_inode(const char *path, uint16_t port)
{
    FILE *file = fopen(path, "re");
    char line[512];
    unsigned long found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(field(line, FIELD_LOCAL), ':');
        if (colon && strtoul(colon + 1, NULL, 16) == port &&
            strtoul(field(line, FIELD_STATE), NULL, 16) == TCP_STATE_LISTEN) {
            found = strtoul(field(line, FIELD_INODE), NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return found;
}

static bool process_has(const char *pid, const char *link)
{
    char path[512], target[64];
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *folder = opendir(path);
    bool found = false;
    struct dirent *entry;
    while (folder && !found && (entry = readdir(folder))) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        found = strcmp(target, link) == 0;
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

/* The words it was started with; its name if they are hidden. */
static void process_words(const char *pid, char *out, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t count = file ? fread(out, 1, size - 1, file) : 0;
    if (file) {
        fclose(file);
    }
    out[count] = 0;
    for (size_t i = 0; i + 1 < count;
         i++) { /* zeros between them, and what a terminal would obey */
        out[i] = (unsigned char)out[i] < ' ' || out[i] == 0x7f ? ' ' : out[i];
    }
    if (!out[0]) {
        snprintf(out, size, "?");
    }
}

void sock_holder(uint16_t port, char *out, size_t size)
{
    unsigned long inode = listen_inode("/proc/net/tcp6", port);
    inode = inode ? inode : listen_inode("/proc/net/tcp", port);
    out[0] = 0;
    DIR *processes = inode ? opendir("/proc") : NULL;
    char link[64];
    snprintf(link, sizeof link, "socket:[%lu]", inode);
    struct dirent *entry;
    while (processes && !out[0] && (entry = readdir(processes))) {
        if (isdigit((unsigned char)entry->d_name[0]) && process_has(entry->d_name, link)) {
            char words[HOLDER_WORDS_MAX];
            process_words(entry->d_name, words, sizeof words);
            snprintf(out, size, "pid %.20s (%s)", entry->d_name, words);
        }
    }
    if (processes) {
        closedir(processes);
    }
}

void solo_port_holder(uint16_t port, char *out, size_t size)
{
    sock_holder(port, out, size);
}
