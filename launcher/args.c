#include "args.h"

#include <string.h>

static const char *const commands[] = {"master",     "doctor", "status",
                                       "completion", "manual", "errors"};

static struct finding unknown(const char *word)
{
    const char *name = word + strspn(word, "-");
    char *bare = text_copy_count(name, strcspn(name, "="));
    const char *nearest = strlen(bare) > 1 ? flag_nearest(bare, false) : NULL;
    return fail(CODE_FLAG, text_format("unknown flag %s", word),
                "neither solorun nor torchrun has it; flags of the script come after the script",
                nearest ? text_format("did you mean --%s?", nearest)
                        : "solorun --help_all lists all flags",
                NULL);
}

static struct finding no_value(const char *word, const char *form)
{
    return fail(CODE_FLAG, text_format("%s needs a value", word), NULL,
                text_format("%s %s", word, form), NULL);
}

/* One long or short flag at argv[*at]; leaves *at on its last word. */
struct cursor {
    int argc, at;
    char **argv;
    struct args *out;
};

static struct finding take_ours(struct cursor *cursor, enum flag_id id, const char *attached)
{
    const struct flag *flag = &flag_table[id];
    const char *word = cursor->argv[cursor->at];
    if (!flag->value) {
        bool dummy = attached && !*attached;
        cursor->out->value[id] = attached ? attached : "1";
        return dummy ? no_value(word, "1") : fine("switch");
    }
    if (!attached) {
        if (cursor->at + 1 >= cursor->argc) {
            return no_value(word, flag->value);
        }
        attached = cursor->argv[++cursor->at];
        if (text_starts(attached, "--") && attached[2]) {
            return no_value(word, flag->value); /* the value was forgotten */
        }
    }
    cursor->out->value[id] = attached;
    return fine("value");
}

static struct finding take_torchrun(struct cursor *cursor, int index, const char *attached)
{
    struct args *out = cursor->out;
    const struct torchrun_flag *flag = &torchrun_table[index];
    if (out->torchrun_count == TORCHRUN_WORDS_MAX) {
        return fail(CODE_FLAG, "too many flags", NULL, NULL, NULL);
    }
    struct torchrun_word *word = &out->torchrun[out->torchrun_count++];
    *word = (struct torchrun_word){.flag = index, .words = {cursor->argv[cursor->at]}};
    if (flag->takes_value) {
        if (!attached) {
            if (cursor->at + 1 >= cursor->argc) {
                return no_value(word->words[0], "VALUE");
            }
            attached = word->words[1] = cursor->argv[++cursor->at];
        }
        word->value = attached;
    } else if (attached) {
        return fail(CODE_FLAG, text_format("--%s takes no value", flag->name), NULL, NULL, NULL);
    }
    out->module |= strcmp(flag->name, "module") == 0;
    out->no_python |= strcmp(flag->name, "no_python") == 0;
    return fine("torchrun");
}

static struct finding take_long(struct cursor *cursor)
{
    const char *word = cursor->argv[cursor->at];
    const char *equal = strchr(word, '=');
    size_t count = equal ? (size_t)(equal - word) - 2 : strlen(word) - 2;
    char *name = text_copy_count(word + 2, count);
    enum flag_id id = flag_find(name);
    if (id != FLAG_COUNT) {
        return take_ours(cursor, id, equal ? equal + 1 : NULL);
    }
    int index = torchrun_find(name);
    return index < 0 ? unknown(word) : take_torchrun(cursor, index, equal ? equal + 1 : NULL);
}

static struct finding take_short(struct cursor *cursor)
{
    const char *word = cursor->argv[cursor->at];
    if (strcmp(word, "-h") == 0) {
        cursor->out->value[FLAG_HELP] = "1";
        return fine("help");
    }
    for (int i = 0; i < torchrun_count; i++) {
        if (torchrun_table[i].letter && torchrun_table[i].letter == word[1]) {
            const char *attached = word[2] ? word + 2 + (word[2] == '=') : NULL;
            return take_torchrun(cursor, i, attached);
        }
    }
    return unknown(word);
}

static const char *find_command(const char *word)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(word, commands[i]) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static void take_script(struct cursor *cursor)
{
    cursor->out->script = cursor->argv[cursor->at];
    for (int i = cursor->at + 1; i < cursor->argc; i++) {
        list_add(&cursor->out->script_args, cursor->argv[i]);
    }
}

struct finding args_parse(int argc, char **argv, struct args *out)
{
    *out = (struct args){0};
    struct cursor cursor = {.argc = argc, .at = 1, .argv = argv, .out = out};
    if (argc > 1 && (out->command = find_command(argv[1]))) {
        cursor.at = 2;
    }
    for (; cursor.at < argc; cursor.at++) {
        const char *word = argv[cursor.at];
        if (strcmp(word, "--") == 0) {
            if (++cursor.at < argc) {
                take_script(&cursor);
            }
            break;
        }
        if (word[0] != '-' || !word[1]) {
            if (!out->command) {
                take_script(&cursor);
                break;
            }
            list_add(&out->operands, word);
            continue;
        }
        struct finding finding = word[1] == '-' ? take_long(&cursor) : take_short(&cursor);
        if (finding.level == LEVEL_FAIL) {
            return finding;
        }
    }
    return fine("parsed");
}

const char *args_torchrun_value(const struct args *args, const char *name)
{
    int index = torchrun_find(name);
    const char *value = NULL;
    for (int i = 0; i < args->torchrun_count; i++) {
        if (args->torchrun[i].flag == index) {
            value = args->torchrun[i].value ? args->torchrun[i].value : "1";
        }
    }
    return value;
}
