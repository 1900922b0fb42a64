#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

struct block {
    struct block *next;
    max_align_t bytes[];
};
static struct block *blocks;

void *text_alloc(size_t size_bytes)
{
    struct block *block =
        size_bytes < SIZE_MAX / 2 ? calloc(1, sizeof *block + size_bytes + 1) : NULL;
    if (!block) {
        fputs("solorun: error SOLO-E099: out of memory\n", stderr);
        exit(EX_OSERR);
    }
    block->next = blocks;
    blocks = block;
    return block->bytes;
}

void text_free_all(void)
{
    while (blocks) {
        struct block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

char *text_copy_count(const char *text, size_t count)
{
    char *copy = text_alloc(count + 1);
    memcpy(copy, text, count);
    return copy;
}

char *text_copy(const char *text)
{
    return text_copy_count(text, strlen(text));
}

static char *format_list(const char *format, va_list values)
{
    va_list again;
    va_copy(again, values);
    int count = vsnprintf(NULL, 0, format, values);
    char *text = text_alloc((size_t)(count < 0 ? 0 : count) + 1);
    if (count > 0) {
        vsnprintf(text, (size_t)count + 1, format, again);
    }
    va_end(again);
    return text;
}

char *text_format(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    char *text = format_list(format, values);
    va_end(values);
    return text;
}

void list_add(struct list *list, const char *text)
{
    if (list->count + 2 > list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        char **items = text_alloc(capacity * sizeof *items);
        if (list->count) {
            memcpy(items, list->items, list->count * sizeof *items);
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = text_copy(text);
    list->items[list->count] = NULL;
}

void list_addf(struct list *list, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    list_add(list, format_list(format, values));
    va_end(values);
}

static char plain(char c)
{
    return c == '-' ? '_' : c;
}

bool text_same_name(const char *left, const char *right)
{
    while (*left && plain(*left) == plain(*right)) {
        left++;
        right++;
    }
    return plain(*left) == plain(*right);
}

bool text_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

enum { NAME_MAX_COMPARED = 40 };

size_t text_distance(const char *left, const char *right)
{
    size_t rows = strlen(left), columns = strlen(right);
    if (rows > NAME_MAX_COMPARED || columns > NAME_MAX_COMPARED) {
        return NAME_MAX_COMPARED;
    }
    size_t cost[NAME_MAX_COMPARED + 1][NAME_MAX_COMPARED + 1];
    for (size_t i = 0; i <= rows; i++) {
        for (size_t j = 0; j <= columns; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            bool same = plain(left[i - 1]) == plain(right[j - 1]);
            cost[i][j] = least(least(cost[i - 1][j], cost[i][j - 1]) + 1,
                               cost[i - 1][j - 1] + (same ? 0 : 1));
            if (i > 1 && j > 1 && plain(left[i - 1]) == plain(right[j - 2]) &&
                plain(left[i - 2]) == plain(right[j - 1])) {
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
            }
        }
    }
    return cost[rows][columns];
}

char *text_shell(const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "_-+=./:,@%";
    if (*text && strspn(text, safe) == strlen(text)) {
        return text_copy(text);
    }
    char *quoted = text_alloc(4 * strlen(text) + 3);
    char *at = quoted;
    *at++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') {
            at = stpcpy(at, "'\\''");
        } else {
            *at++ = *text;
        }
    }
    *at = '\'';
    return quoted;
}

char *text_json(const char *text)
{
    char *quoted = text_alloc(6 * strlen(text) + 3);
    char *at = quoted;
    *at++ = '"';
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            *at++ = '\\';
            *at++ = *text;
        } else if (c < 0x20) {
            at += sprintf(at, "\\u%04x", c);
        } else {
            *at++ = *text;
        }
    }
    *at = '"';
    return quoted;
}

char *text_trim(const char *text)
{
    static const char blank[] = " \t\r\n";
    text += strspn(text, blank);
    size_t count = strlen(text);
    while (count && strchr(blank, text[count - 1])) {
        count--;
    }
    return text_copy_count(text, count);
}

char *text_read_file(const char *path, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    char *bytes = text_alloc(size);
    size_t count = 0;
    while (count + 1 < size) {
        ssize_t got = read(fd, bytes + count, size - 1 - count);
        if (got < 0) {
            int why = errno;
            close(fd);
            errno = why;
            return NULL;
        }
        if (got == 0) {
            break;
        }
        count += (size_t)got;
    }
    close(fd);
    return bytes;
}
