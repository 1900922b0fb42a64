#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 64 * 1024 };

static struct finding bad(const char *path, int line, const char *what, const char *fix)
{
    return fail(CODE_CONFIG, text_format("%s:%d: %s", path, line, what),
                "lines are `name = value`; values are \"text\", numbers, true or false", fix,
                "solorun --print_config");
}

/* The value at `at`, unquoted; NULL if it is none. What follows may only be a comment. */
static char *read_value(const char *at)
{
    char quote = *at == '"' || *at == '\'' ? *at : 0;
    if (!quote) {
        char *value = text_trim(text_copy_count(at, strcspn(at, "#")));
        return *value && !strpbrk(value, "[]{}\"' \t") ? value : NULL;
    }
    char *value = text_alloc(strlen(at) + 1), *to = value;
    for (at++; *at && *at != quote; at++) {
        if (*at == '\\' && quote == '"') {
            at++;
            if (*at != '"' && *at != '\\') {
                return NULL;
            }
        }
        *to++ = *at;
    }
    if (*at != quote) {
        return NULL;
    }
    char *rest = text_trim(at + 1);
    return !*rest || *rest == '#' ? value : NULL;
}

static struct finding parse_line(const char *path, int number, const char *line,
                                 struct settings *settings)
{
    const char *equal = strchr(line, '=');
    if (!equal) {
        return bad(path, number, text_format("`%s` is no `name = value`", line), NULL);
    }
    char *name = text_trim(text_copy_count(line, (size_t)(equal - line)));
    enum flag_id id = flag_find(name);
    if (id == FLAG_COUNT || flag_table[id].traits & FLAG_ACTION || id == FLAG_CONFIG) {
        const char *nearest = flag_nearest(name, true);
        return bad(path, number, text_format("there is no setting `%s`", name),
                   nearest ? text_format("did you mean %s?", nearest) : NULL);
    }
    char *value = read_value(text_trim(equal + 1));
    if (!value) {
        return bad(path, number, text_format("`%s` is no value for %s", equal + 1, name), NULL);
    }
    if (*value) {
        settings_offer(settings, id, SOURCE_FILE, text_format("%s:%d", path, number), value);
    }
    return fine("line");
}

struct finding config_parse(const char *path, const char *text, struct settings *settings)
{
    for (int number = 1; *text; number++) {
        size_t count = strcspn(text, "\n");
        char *line = text_trim(text_copy_count(text, count));
        text += count + (text[count] == '\n');
        if (!*line || *line == '#') {
            continue;
        }
        struct finding finding = parse_line(path, number, line, settings);
        if (finding.level == LEVEL_FAIL) {
            return finding;
        }
    }
    return fine("%s", path);
}

static struct finding offer_file(const char *path, bool wanted, struct settings *settings)
{
    char *text = text_read_file(path, CONFIG_BYTES_MAX);
    if (text) {
        return config_parse(path, text, settings);
    }
    if (!wanted && (errno == ENOENT || errno == ENOTDIR)) {
        return fine("no %s", path);
    }
    return fail(CODE_CONFIG, text_format("cannot read %s: %s", path, strerror(errno)), NULL,
                "check --config and the file's permissions", NULL);
}

struct finding config_offer(struct settings *settings)
{
    const struct setting *chosen = &settings->of[FLAG_CONFIG];
    if (chosen->value) {
        return offer_file(chosen->value, true, settings);
    }
    struct finding finding = offer_file("solo.toml", false, settings);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (base && *base) {
        return offer_file(text_format("%s/solo/config.toml", base), false, settings);
    }
    return home && *home
               ? offer_file(text_format("%s/.config/solo/config.toml", home), false, settings)
               : finding;
}
