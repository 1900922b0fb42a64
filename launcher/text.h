/* text.h - strings and lists of a short-lived process.
 *
 * Memory: everything lives until text_free_all, which only tests call: the process execs or
 * ends within milliseconds. Out of memory ends the process with EX_OSERR and one line. */
#ifndef LAUNCHER_TEXT_H
#define LAUNCHER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#define TEXT_PRINTF(at, first) __attribute__((format(printf, at, first)))

void *text_alloc(size_t size_bytes);
char *text_format(const char *format, ...) TEXT_PRINTF(1, 2);
char *text_copy(const char *text);
char *text_copy_count(const char *text, size_t count);
void text_free_all(void);

/* Words in order, kept with a final NULL so that `items` is an argv. */
struct list {
    char **items;
    size_t count, capacity;
};
void list_add(struct list *list, const char *text);
void list_addf(struct list *list, const char *format, ...) TEXT_PRINTF(2, 3);

/* The same name, '-' being as good as '_'. */
bool text_same_name(const char *left, const char *right);
bool text_starts(const char *text, const char *prefix);

/* Edits (insert, delete, replace, swap neighbours) between two names; '-' equals '_'. */
size_t text_distance(const char *left, const char *right);

/* Quoted for a shell only if it must be; quoted for JSON, with the quotes. */
char *text_shell(const char *text);
char *text_json(const char *text);

/* Without blanks at both ends. */
char *text_trim(const char *text);

/* Up to size - 1 bytes of a file, zero-terminated; NULL with errno set. */
char *text_read_file(const char *path, size_t size);

#endif
